"""Pulls of CRI-O: files that grow, layers that are stored, lines of the log."""

from __future__ import annotations
