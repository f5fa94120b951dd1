"""Calls between clients and the runtime, passed on frame by frame or answered by the proxy."""
