"""Generated from proto/ by proto/generate.py: nothing here is written by hand."""

from __future__ import annotations

from types import ModuleType

from pycrictl._proto import load


def __getattr__(name: str) -> ModuleType:
    return load(__name__, name)
