"""Generators of files that are committed and shipped; only building needs them."""
