"""What a peer may send over HTTP/2: one table for our own calls and the proxy."""

from __future__ import annotations

from typing import Final

HEADER_BLOCK_BYTES: Final = 16 * 1024 * 1024
"""The longest header block as it is sent, with its continuations."""

HEADER_LIST_BYTES: Final = 16 * 1024 * 1024
"""The longest header list, decoded, counted as in RFC 7541, section 4.1."""

MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""The longest message of a call, as kubelet and the runtimes have it."""

EARLY_PONGS: Final = 100
"""The most pings of a runtime before the client has said anything."""
