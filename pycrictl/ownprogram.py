"""Functions of this program in a process of their own, whichever way the program was started."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Final

ENTRY: Final = "--call"
"""The option that makes a frozen program, which is not an interpreter, call a function."""

_PROGRAM: Final = """\
import os, sys
sys.path[:] = sys.argv[1].split(os.pathsep)
from pycrictl.ownprogram import call
call(*sys.argv[2:])
"""


def command(target: str) -> list[str]:
    """Return the command that calls a function, ``MODULE:NAME``, with the words that follow it."""
    if getattr(sys, "frozen", False):
        return [sys.executable, ENTRY, target]
    package = os.path.abspath(__file__)  # noqa: PTH100 (in an archive of modules it is not a file)
    for _ in __name__.split("."):
        package = os.path.dirname(package)  # noqa: PTH120 (the same)
    # Relative ones would mean something else there.
    folders = [package, *filter(os.path.isabs, sys.path)]
    return [sys.executable, "-I", "-S", "-c", _PROGRAM, os.pathsep.join(folders), target]


def call(target: str, *words: str) -> None:
    module, _, name = target.partition(":")
    getattr(import_module(module), name)(*words)
