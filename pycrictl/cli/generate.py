"""Writes the committed files that are made of the command tree: completions and man pages.

    python -m pycrictl.cli.generate [FOLDER]

FOLDER is the project's, by default the one that this package is in.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pycrictl.cli import manpages, shells


def files() -> dict[str, bytes]:
    """All of them by their paths in the project."""
    found = {f"completions/{name}": content for name, content in shells.files().items()}
    found |= {f"man/{name}": content for name, content in manpages.pages().items()}
    return found


def write(folder: Path) -> None:
    """Writes them, and removes what is left of commands that are gone."""
    made = files()
    for directory in sorted({path.partition("/")[0] for path in made}):
        (folder / directory).mkdir(exist_ok=True)
        for old in (folder / directory).iterdir():
            if f"{directory}/{old.name}" not in made:
                old.unlink()
    for path, content in made.items():
        (folder / path).write_bytes(content)


if __name__ == "__main__":
    write(Path(*sys.argv[1:]) if sys.argv[1:] else Path(__file__).parents[2])
