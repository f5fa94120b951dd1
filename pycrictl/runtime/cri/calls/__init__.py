"""Calls to a runtime: making, logging and tracing them, and mapping their failures."""

from __future__ import annotations
