"""Calls to a runtime: making and logging them, and mapping their failures."""

from __future__ import annotations
