"""Limits on what one peer or file can make this program do. Pure.

Protocols leave such limits to each receiver. All readers enforce these, and gRPC gets them as
channel arguments. Within them the work is linear in what the peer sends; beyond them the peer's
call is reset or its connection closed, with an error code that says why.

Frames without content, such as pings, are limited by rate and not in total, because a connection
may live for months: an ``Allowance`` refills with time, and with frames that carry content.
"""

from __future__ import annotations

from typing import Final

# Calls
HEADER_LIST_BYTES: Final = 64 * 1024  # the metadata of one call, measured as in RFC 7541, 4.1
STREAMS: Final = 512  # calls on one connection; a reset one counts until the reset is noticed
PENDING_CALLS: Final = 8192  # calls on all connections that this program has not taken up yet
MESSAGE_BYTES: Final = 16 * 1024 * 1024  # a runtime's message; kubelet and crictl accept as much

# The largest file that is read as a whole: configurations, credentials, lists of hosts or images,
# and files of the node.
FILE_BYTES: Final = 1024 * 1024

# Connections: each maximum, and its share: at most one connection per so many file descriptors.
CONNECTIONS: Final = 1024  # to the CRI socket
CONNECTION_SHARE: Final = 2
STREAM_CONNECTIONS: Final = 512  # to the stream server, including those without a token yet
STREAM_SHARE: Final = 4
PAGE_CONNECTIONS: Final = 128  # to the pages of metrics and health
PAGE_SHARE: Final = 8

HEAD_S: Final = 10.0  # how long such a connection may take to send its request head
GOODBYE_S: Final = 1.0  # how long a peer may take to confirm that a connection is closed
BACKLOG: Final = 1024  # connections waiting in the kernel to be accepted

# Streams: a WebSocket message is buffered until complete; runtimes send 32 KiB at a time. Idle
# frames are frames without content, such as pings, in a row on a WebSocket or SPDY connection.
STREAM_MESSAGE_BYTES: Final = 4 * 1024 * 1024
STREAM_IDLE_FRAMES: Final = 1000
STREAM_IDLE_FRAMES_PER_S: Final = 10

# Log lines of one kind about events that peers can cause at will: how many in a row, how many more
# per second, and how often the number of suppressed lines is logged.
FAULT_LINES: Final = 10
FAULT_LINES_PER_S: Final = 0.1
FAULT_COUNT_S: Final = 20.0


class Allowance:
    """A token bucket: at most ``burst`` tokens, refilled at ``per_s`` tokens per second.

    The caller may set ``earned``: tokens that the next refill adds to those for elapsed time.
    """

    __slots__ = ("_at", "_burst", "_left", "_per_s", "earned")

    def __init__(self, burst: int, per_s: float) -> None:
        self.earned = 0
        self._burst = burst
        self._per_s = per_s
        self._left = burst
        self._at: float | None = None

    def spend(self, now: float) -> bool:
        """Spend one token at the time ``now`` in seconds; return whether there was one."""
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
