"""Copies from and to containers, by two methods."""
