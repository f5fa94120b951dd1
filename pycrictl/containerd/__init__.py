"""A client of containerd's own API, beside the CRI on the same socket."""
