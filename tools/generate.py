"""Write the committed files that are made of the command tree: completions and man pages.

    python -m tools.generate [FOLDER]

FOLDER is the project's; by default the one that contains this package.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools import completions
from tools.manual import pages

ROOT = Path(__file__).parents[1]
_MADE = ("completions/*", "man/*.[0-9]")
"""All that is generated and nothing else: files of commands that are gone are removed."""


def files() -> dict[str, bytes]:
    """Return the content of each file by its path in the project."""
    found = {f"completions/{name}": content for name, content in completions.files().items()}
    found |= {f"man/{name}": content for name, content in pages.pages().items()}
    return found


def write(folder: Path) -> None:
    """Write all files, and remove those of commands that are gone."""
    made = files()
    for pattern in _MADE:
        for old in folder.glob(pattern):
            if str(old.relative_to(folder)) not in made:
                old.unlink()
    for path, content in made.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(content)


if __name__ == "__main__":
    write(Path(*sys.argv[1:]) if sys.argv[1:] else ROOT)
