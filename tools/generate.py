"""Generate the committed files: man pages, and the list of modules.

    python -m tools.generate [FOLDER]

FOLDER is the project's; by default the one that contains this package.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Final

from tools.manual import pages

ROOT = Path(__file__).parents[1]
_MADE = "man/*.[0-9]"
"""Matches generated files only: those of removed commands are deleted."""

_MODULES: Final = "\n## Modules\n"
"""The heading in ARCHITECTURE.md before which all text is written by hand."""


def files() -> dict[str, bytes]:
    files = {f"man/{name}": content for name, content in pages.pages().items()}
    by_hand = (ROOT / "ARCHITECTURE.md").read_text("utf-8").partition(_MODULES)[0]
    return files | {"ARCHITECTURE.md": f"{by_hand}{_MODULES}{_modules()}".encode()}


def _modules() -> str:
    lines = [
        "",
        "Each with the first paragraph of its docstring.",
        "",
        "| module | what |",
        "| --- | --- |",
    ]
    for path in sorted((ROOT / "pycrictl").rglob("*.py")):
        name = path.relative_to(ROOT / "pycrictl")
        if name.parts[0] != "_proto" and name.name != "__init__.py":
            text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
            first = " ".join(text.partition("\n\n")[0].split()).replace("``", "`")
            lines.append(f"| `{name}` | {first.replace('|', chr(92) + '|')} |")
    return "\n".join([*lines, ""])


def write(folder: Path) -> None:
    """Write all files, and delete those of removed commands."""
    made = files()
    for old in folder.glob(_MADE):
        if str(old.relative_to(folder)) not in made:
            old.unlink()
    for path, content in made.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(content)


if __name__ == "__main__":
    write(Path(*sys.argv[1:]) if sys.argv[1:] else ROOT)
