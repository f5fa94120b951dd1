"""A call in the proxy: request and answer. Plain data, messages as bytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]


class Answer(NamedTuple):
    """The result of a call with one response; ``code`` and ``message`` are its gRPC status."""

    code: int = 0
    message: str = ""
    response: bytes | None = None
    initial_metadata: Metadata = ()
    trailing_metadata: Metadata = ()


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A client's call with one request message.

    ``message`` is still serialised and may contain credentials; ``metadata`` excludes the
    transport's; ``timeout_s`` counts from ``came``, the time of arrival on the loop's clock.
    """

    path: str
    message: bytes = field(repr=False)
    metadata: Metadata = field(default=(), repr=False)
    timeout_s: float | None = None
    came: float = 0.0

    @property
    def trace(self) -> str:
        """The call's trace context (W3C ``traceparent``); empty if it has none."""
        found = dict(self.metadata).get("traceparent", "")
        return found if isinstance(found, str) else ""


Handler: TypeAlias = Callable[[CallRequest], Awaitable[Answer]]
"""Answers one call; cancelled when the client gives up. Its exceptions become INTERNAL."""


def ends(path: str) -> bool:
    """Return whether calls of a method end by themselves; streams last as long as their clients."""
    name = path.rpartition("/")[2]
    return name != "GetContainerEvents" and not name.startswith("Stream")
