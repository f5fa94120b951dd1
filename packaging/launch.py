"""Entry point of the standalone program."""

from __future__ import annotations

from pycrictl.__main__ import run

run()
