"""Copying on the node itself, through the root of the container's first process."""
