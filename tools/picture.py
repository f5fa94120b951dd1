"""Record the picture of README.md: ``make demo`` on a terminal, from its first bar on.

    .venv-picture/bin/python -m tools.picture

While the node starts, the screen is empty for seconds; what is printed until the first bar is
printed at once.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PICTURE: Final = ROOT / "docs" / "image-pull-progress.svg"
BAR: Final = "%|"
"""What only a line of progress has."""

_DEMO: Final = ".venv/bin/python -m tests.e2e.node.demo"


def from_first_bar(cast: str) -> str:
    """Return an asciicast (v2) whose first bar is at its beginning.

    Raises:
        ValueError: there is no bar in it.
    """
    head, *lines = cast.splitlines()
    events = [json.loads(line) for line in lines]
    first_s = next((time_s for time_s, _, text in events if BAR in text), None)
    if first_s is None:
        raise ValueError("no bar was recorded")
    moved = [[max(0.0, time_s - first_s), kind, text] for time_s, kind, text in events]
    return "\n".join([head, *map(json.dumps, moved)]) + "\n"


def main() -> None:
    termtosvg = [sys.executable, "-m", "termtosvg"]
    with tempfile.TemporaryDirectory() as folder:
        cast = Path(folder) / "demo.cast"
        subprocess.run(
            [*termtosvg, "record", cast, "-g", "80x24", "-c", _DEMO], cwd=ROOT, check=True
        )
        cast.write_text(from_first_bar(cast.read_text("utf-8")), "utf-8")
        looks = ("-m", "500", "-D", "6000", "-t", "window_frame")
        subprocess.run([*termtosvg, "render", cast, PICTURE, *looks], check=True)


if __name__ == "__main__":
    main()
