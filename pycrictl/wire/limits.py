"""What one peer may make this program do: the limits of calls, streams and logs. Pure.

Protocols leave to each receiver what it puts up with. All readers here keep to these numbers, and
gRPC is given them as channel arguments. Up to them the work is linear in what the peer sends;
beyond them its call is reset or its connection ended with the error code that says why.

What only looks like traffic, such as pings, is not counted in all, because a connection may live
for months: an ``Allowance`` grows again with time, and with the frames that carry something.
"""

from __future__ import annotations

from typing import Final

HEADER_LIST_BYTES: Final = 64 * 1024
"""The metadata of one call, by the measure of RFC 7541, 4.1."""

STREAMS: Final = 512
"""The calls under way on one connection, those included that were reset and wait to be noticed."""

PENDING_CALLS: Final = 8192
"""The calls of all connections that wait until this program notices them."""

MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""A message of a runtime: what kubelet and crictl take, too."""

ANSWER_PARTS: Final = 500_000
"""The objects in a runtime's answer, nested ones included: a command takes 460 MiB for them."""

UNCOUNTED_BYTES: Final = 1024 * 1024
"""Objects are not counted in answers that are no longer: they have at most half as many."""

CONNECTIONS: Final = 1024
"""The connections to the CRI socket."""

CONNECTION_SHARE: Final = 2
"""One of so many file descriptors at most is one of those."""

STREAM_CONNECTIONS: Final = 512
"""The connections of the stream server, those that have not shown a token yet included."""

STREAM_SHARE: Final = 4
"""One of so many file descriptors at most is a connection of the stream server."""

PAGE_CONNECTIONS: Final = 128
"""The connections to the pages of metrics and health."""

PAGE_SHARE: Final = 8
"""One of so many file descriptors at most is one of those."""

HEAD_S: Final = 10.0
"""How long such a connection may take for the head of its request."""

CROWDED_HEAD_S: Final = 1.0
"""The same once half of the places are taken."""

BACKLOG: Final = 1024
"""The connections that wait in the kernel's queue until they are accepted."""

ACCEPTED_AT_ONCE: Final = 4
"""The connections that are accepted before others have their turn."""

STREAM_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""A message of a WebSocket, which is held until it is whole. Runtimes send 32 KiB at once."""

STREAM_IDLE_FRAMES: Final = 1000
"""The frames without content in a row on a WebSocket or SPDY connection, such as pings."""

STREAM_IDLE_FRAMES_PER_S: Final = 10
"""How many more of them each second allows."""

FAULT_LINES: Final = 10
"""The log lines of one kind in a row about what peers can do as often as they like."""

FAULT_LINES_PER_S: Final = 0.1
"""How many more of them each second allows."""

FAULT_COUNT_S: Final = 20.0
"""How often the number of those that were left out is logged."""


class Allowance:
    """So many at once, and so many more each second.

    There are never more than ``burst`` left. ``earned`` is how many there may be, whatever the
    time; the caller sets it.
    """

    __slots__ = ("_at", "_burst", "_left", "_per_s", "earned")

    def __init__(self, burst: int, per_s: float) -> None:
        self.earned = 0
        self._burst = burst
        self._per_s = per_s
        self._left = burst
        self._at: float | None = None

    def take(self, now: float) -> bool:
        """Take one at the time ``now`` in seconds, and return whether there was one."""
        if self._at is None:
            self._at = now
        if not self._left:
            self._left = min(int((now - self._at) * self._per_s) + self.earned, self._burst)
            if not self._left:
                return False
            self._at = now
            self.earned = 0
        self._left -= 1
        return True
