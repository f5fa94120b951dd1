"""Runs the program with ``python -m pycrictl``."""

from pycrictl.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
