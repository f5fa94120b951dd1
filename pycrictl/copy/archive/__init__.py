"""Packing trees as tar archives, and unpacking them."""
