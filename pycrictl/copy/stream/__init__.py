"""Copies by the runtime's own calls (KEP-4582): a client's way, and both ends of the stream."""
