"""Recordings of crictl 1.36.0 to compare with: its output, exit status and CRI calls.

``data/*.jsonl`` holds one recording per line. Of messages on stderr only the kind is kept; help
pages and completion scripts are not kept. The recordings come from two scenes: ``real`` (and
``changes``, ``teardown``, ``process``) from containerd 1.6.20 with three pods, five containers and
five images; ``fake`` and ``logs`` from a prepared runtime, whose responses ``scene`` builds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

DATA = Path(__file__).parent / "data"


class Rpc(TypedDict):
    """One call: its request with proto field names, its deadline, and its status by name."""

    rpc: str
    request: dict[str, Any]
    deadline_s: float | None
    code: str


@dataclass(frozen=True)
class Capture:
    """One recorded command line and its result.

    Attributes:
        name: unique; a prefix of one letter and a dash gives the scene, no prefix means ``real``.
        command: as given to a shell; some use variables of the scene.
        stdout: always ends with a line break, even if the command wrote none; None if it was
            not kept.
        told: ``error`` if stderr had an error line, ``note`` if it had only other messages, else
            empty. Output of containers does not count.
        rc: the exit status; negative for the signal that ended the shell.
        rpc: the calls, in order.
        is_help: whether stdout was a help page.
    """

    name: str
    command: str
    stdout: str | None
    rc: int
    rpc: list[Rpc]
    is_help: bool = False
    told: str = ""

    @property
    def output(self) -> str:
        assert self.stdout is not None, f"{self.name} keeps no stdout"
        return self.stdout


@cache
def _all() -> dict[str, Capture]:
    captures = {}
    for path in sorted(DATA.glob("*.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            record = json.loads(line)
            is_help = record.pop("help", False)
            captures[record["name"]] = Capture(**record, is_help=is_help)
    return captures


def load(prefix: str) -> list[Capture]:
    """Return the recordings named ``prefix`` or ``prefix-…``, sorted by name."""
    captures = [
        capture
        for name, capture in sorted(_all().items())
        if name == prefix or name.startswith(f"{prefix}-")
    ]
    assert captures, f"no recording {prefix}"
    return captures


def everything() -> list[Capture]:
    return [capture for _, capture in sorted(_all().items())]


def capture(name: str) -> Capture:
    return _all()[name]


def documents(text: str, mapping: Callable[[list[tuple[str, Any]]], Any] = dict) -> Iterator[Any]:
    """Yield the JSON documents that are concatenated in ``text``."""
    decoder = json.JSONDecoder(object_pairs_hook=mapping)
    while text := text.lstrip():
        document, end = decoder.raw_decode(text)
        yield document
        text = text[end:]
