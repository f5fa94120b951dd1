"""Copies to and from containers that the proxy makes (KEP-4582)."""
