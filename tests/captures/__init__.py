"""What crictl 1.36.0 printed, returned and called: recordings to compare with.

``data/*.jsonl`` holds one recording a line. Of messages on stderr only their kind is kept; help
pages and completion scripts are not. The recordings come from two scenes: ``real`` (and
``changes``, ``teardown``, ``process``) from containerd 1.6.20 with three pods, five containers and
five images; ``fake`` and ``logs`` from a prepared runtime, whose answers ``scene`` builds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

DATA = Path(__file__).parent / "data"

NEWER_FIELDS = ("mountOptions",)
"""What the API has got since."""


class Rpc(TypedDict):
    """One call: its request by proto field names, its deadline and the name of its status."""

    rpc: str
    request: dict[str, Any]
    deadline_s: float | None
    code: str


@dataclass(frozen=True)
class Capture:
    """One command line and what came of it.

    Attributes:
        name: unique; its first letter and dash say which scene, none stands for ``real``.
        command: as given to a shell; some use variables of the scene.
        stdout: with a final line break, which the command itself may not have written; None
            where it was not kept.
        told: ``error`` where an error line was on standard error, ``note`` where only other
            messages were, else nothing. What containers write does not count.
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
    """The recordings whose names are ``prefix`` or begin with it and a dash, sorted by name."""
    found = [
        capture
        for name, capture in sorted(_all().items())
        if name == prefix or name.startswith(f"{prefix}-")
    ]
    assert found, f"no recording {prefix}"
    return found


def everything() -> list[Capture]:
    return [capture for _, capture in sorted(_all().items())]


def capture(name: str) -> Capture:
    return _all()[name]


def documents(text: str, mapping: Callable[[list[tuple[str, Any]]], Any] = dict) -> Iterator[Any]:
    """The JSON documents that follow each other in a text."""
    decoder = json.JSONDecoder(object_pairs_hook=mapping)
    while text := text.lstrip():
        document, end = decoder.raw_decode(text)
        yield document
        text = text[end:]


def in_order(pairs: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """A mapping for ``documents`` in which the order of keys counts."""
    return [pair for pair in pairs if pair[0] not in NEWER_FIELDS]
