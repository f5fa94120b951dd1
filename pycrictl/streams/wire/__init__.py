"""Protocols as bytes and as data: no socket, no loop, no clock."""
