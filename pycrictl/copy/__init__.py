"""Copies from and to containers, by three methods."""
