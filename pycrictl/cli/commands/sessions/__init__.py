"""Commands that reach into containers and pods: exec, attach, port-forward and cp."""
