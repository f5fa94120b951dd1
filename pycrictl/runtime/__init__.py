"""Clients of what runs on the node: the CRI, and containerd's own API."""
