"""Files of a node below another root: its processes, and files of JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def run_program(root: Path, pid: int, *words: str) -> None:
    folder = root / "proc" / str(pid)
    for process in (folder, root / "proc/1"):
        (process / "ns").mkdir(parents=True, exist_ok=True)
        (process / "status").write_text("Name:\tx\nUid:\t0\t0\t0\t0\n")
        (process / "ns/mnt").unlink(missing_ok=True)
        (process / "ns/mnt").symlink_to("mnt:[1]")
    (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words))


def write(path: Path, document: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return str(path)
