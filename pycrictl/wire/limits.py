"""What one peer may make this program do: the limits of calls, streams and logs. Pure.

Protocols leave to each receiver what it puts up with. All readers here keep to these numbers, and
gRPC is given them as channel arguments. Up to them the work is linear in what the peer sends;
beyond them its call is reset or its connection ended with the error code that says why.

What only looks like traffic, such as pings, is not counted in all, because a connection may live
for months: an ``Allowance`` grows again with time, and with the frames that carry something.
"""

from __future__ import annotations

from typing import Final

# Calls
HEADER_LIST_BYTES: Final = 64 * 1024  # the metadata of one call, by the measure of RFC 7541, 4.1
STREAMS: Final = 512  # the calls of a connection; one that was reset counts until it is noticed
PENDING_CALLS: Final = 8192  # the calls of all connections until this program notices them
MESSAGE_BYTES: Final = 16 * 1024 * 1024  # a runtime's message: what kubelet and crictl take, too

# The objects in a runtime's answer, nested ones included: a command takes 460 MiB for them. They
# are not counted in answers up to the second limit, which have at most half as many.
ANSWER_PARTS: Final = 500_000
UNCOUNTED_BYTES: Final = 1024 * 1024

# Connections: how many, and one of how many file descriptors at most is one of those.
CONNECTIONS: Final = 1024  # to the CRI socket
CONNECTION_SHARE: Final = 2
STREAM_CONNECTIONS: Final = 512  # to the stream server, also those without a token yet
STREAM_SHARE: Final = 4
PAGE_CONNECTIONS: Final = 128  # to the pages of metrics and health
PAGE_SHARE: Final = 8

HEAD_S: Final = 10.0  # how long such a connection may take for the head of its request
CROWDED_HEAD_S: Final = 1.0  # the same once half of the places are taken
BACKLOG: Final = 1024  # the connections that wait in the kernel until they are accepted
ACCEPTED_AT_ONCE: Final = 4  # the connections that are accepted before others have their turn

# Streams: a message of a WebSocket is held until it is whole, and runtimes send 32 KiB at once.
# Idle are frames without content in a row on a WebSocket or SPDY connection, such as pings.
STREAM_MESSAGE_BYTES: Final = 4 * 1024 * 1024
STREAM_IDLE_FRAMES: Final = 1000
STREAM_IDLE_FRAMES_PER_S: Final = 10

# The log lines of one kind about what peers can do as often as they like: so many in a row, so many
# more each second, and how often the number of those that were left out is logged.
FAULT_LINES: Final = 10
FAULT_LINES_PER_S: Final = 0.1
FAULT_COUNT_S: Final = 20.0


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
