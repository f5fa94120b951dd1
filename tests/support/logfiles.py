"""Container logs: their lines, and reading and following them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pycrictl.node.logs.log_reader import LogReader, Selection
from pycrictl.node.logs.logline import Chunk

ALL = Selection()
ROUNDS = 50


def line(text: str, stream: str = "stdout", tag: str = "F", *, second: int = 5) -> bytes:
    return f"2024-01-02T03:04:{second:02}.123456789Z {stream} {tag} {text}\n".encode()


def lines(*texts: str) -> bytes:
    return b"".join(line(text) for text in texts)


def on_stream(chunks: list[Chunk], stream: str = "stdout") -> str:
    return b"".join(chunk.data for chunk in chunks if chunk.stream == stream).decode()


def read(path: Path, selection: Selection = ALL) -> list[Chunk]:
    return list(LogReader(str(path), selection, warn=pytest.fail).read())


def follow(path: Path, *steps: Callable[[], object], selection: Selection = ALL) -> list[Chunk]:
    """Follow a log; each wait of the reader runs a step, and the container exits after the last."""
    todo = list(steps)
    rounds = iter(range(ROUNDS))

    def wait() -> None:
        assert next(rounds, None) is not None, "the log never ends"
        if todo:
            todo.pop(0)()

    reader = LogReader(str(path), selection, warn=pytest.fail)
    chunks = list(reader.follow(lambda: bool(todo), wait))
    assert not todo
    return chunks


def append(path: Path, data: bytes) -> Callable[[], object]:
    def write() -> None:
        with path.open("ab") as file:
            file.write(data)

    return write
