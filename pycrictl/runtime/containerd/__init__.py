"""A client for containerd's own API, served on the same socket as the CRI."""
