"""Pulls of CRI-O: files that grow, and layers that are stored."""
