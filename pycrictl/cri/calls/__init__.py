"""Calls to a runtime: made, watched, and what their failures mean."""

from __future__ import annotations
