"""The client's end of the streams behind a runtime's URLs: exec, attach and port-forward."""
