"""What the standalone program runs."""

from __future__ import annotations

from pycrictl.__main__ import run

run()
