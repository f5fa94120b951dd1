"""What a call is to the proxy: request, answer, record. Plain data, messages as bytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]


class Answer(NamedTuple):
    """How a call with one response ended; ``code`` and ``message`` are of the gRPC status."""

    code: int = 0
    message: str = ""
    response: bytes | None = None
    initial_metadata: Metadata = ()
    trailing_metadata: Metadata = ()


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A call that the proxy answers itself, with its one message.

    ``message`` is still serialised and may hold credentials; ``metadata`` is without the
    transport's own; ``timeout_s`` counts from ``came``, on the loop's clock.
    """

    path: str
    message: bytes = field(repr=False)
    metadata: Metadata = field(default=(), repr=False)
    timeout_s: float | None = None
    came: float = 0.0

    @property
    def trace(self) -> str:
        """The caller's place in a trace (W3C ``traceparent``); empty if it names none."""
        found = dict(self.metadata).get("traceparent", "")
        return found if isinstance(found, str) else ""


Handler: TypeAlias = Callable[[CallRequest], Awaitable[Answer]]
"""Answers one own call; cancelled when the client gives up. What it raises becomes INTERNAL."""


@dataclass(frozen=True, slots=True)
class CallRecord:
    """A call that is over, for the log. It holds nothing of its content."""

    path: str
    code: int
    duration_s: float
    response_bytes: int


def ends(path: str) -> bool:
    """Return whether a call ends of its own accord; a stream lasts as long as its client."""
    name = path.rpartition("/")[2]
    return name != "GetContainerEvents" and not name.startswith("Stream")
