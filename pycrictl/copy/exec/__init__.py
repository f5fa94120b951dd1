"""Copying through programs in the container."""
