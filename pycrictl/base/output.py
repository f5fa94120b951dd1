"""Writes bytes to descriptors and standard streams. Its imports cost nothing."""

from __future__ import annotations

import io
import os
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO


def descriptor_of(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError):  # in memory, or closed
        return None


def write_pieces(descriptor: int, pieces: list[bytes | memoryview]) -> None:
    """Write all pieces in order, even if another program made the descriptor non-blocking."""
    while pieces:
        try:
            written_bytes = os.writev(descriptor, pieces)
        except BlockingIOError:
            select.select([], [descriptor], [])
            continue
        while pieces and written_bytes >= len(pieces[0]):
            written_bytes -= len(pieces[0])
            pieces = pieces[1:]
        if written_bytes:
            pieces = [memoryview(pieces[0])[written_bytes:], *pieces[1:]]


def write_bytes(stream: TextIO, data: bytes) -> None:
    """Write bytes to a standard stream of any kind, after the text that was written before."""
    stream.flush()
    if (descriptor := descriptor_of(stream)) is not None:
        write_pieces(descriptor, [data])
    elif isinstance(stream, io.TextIOWrapper):  # in memory
        stream.buffer.write(data)
    else:
        stream.write(data.decode(errors="replace"))
