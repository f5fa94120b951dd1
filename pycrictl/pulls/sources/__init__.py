"""Pulls as seen from outside: their sources, and what is known of each image and layer."""
