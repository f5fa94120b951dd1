"""Copies into and out of the containers of a node, in sessions that survive broken connections."""
