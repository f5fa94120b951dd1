"""Reading and writing whole archives."""

from __future__ import annotations

from pycrictl.streams.wire.tar.header import (
    END_OF_ARCHIVE,
    Entry,
    encode_block,
    encode_entry,
    encode_record,
    padding_after,
)
from pycrictl.streams.wire.tar.reader import DataReceived, EntryStarted, read

NS = 10**9


def content_of(archive: bytes, step: int = 0) -> list[tuple[Entry, bytes]]:
    """Return entries and contents of an archive, read whole or ``step`` bytes at a time."""
    step = step or len(archive)
    entries: list[tuple[Entry, bytes]] = []
    for event in read(archive[start : start + step] for start in range(0, len(archive), step)):
        if isinstance(event, EntryStarted):
            entries.append((event.entry, b""))
        elif isinstance(event, DataReceived):
            entries[-1] = (entries[-1][0], entries[-1][1] + event.data)
    assert all(len(data) == entry.size_bytes for entry, data in entries)
    return entries


def packed(*members: tuple[Entry, bytes]) -> bytes:
    made = (
        encode_entry(entry) + content + padding_after(len(content)) for entry, content in members
    )
    return b"".join(made) + END_OF_ARCHIVE


def member(
    name: bytes = b"name",
    kind: bytes = b"0",
    data: bytes = b"",
    *,
    link: bytes = b"",
    size: int | None = None,
    mode: int = 0o644,
    uid: int = 0,
    gid: int = 0,
    mtime_s: int = 0,
) -> bytes:
    size = len(data) if size is None else size
    header = encode_block(name, kind, size, mode, uid, gid, mtime_s, link)
    return header + data + bytes(-len(data) % 512)


def pax(*records: tuple[bytes, bytes], kind: bytes = b"x") -> bytes:
    return member(b"pax", kind, b"".join(encode_record(*record) for record in records))


def patch(header: bytes, offset: int, data: bytes, *, checksum: bool = True) -> bytes:
    """Replace bytes of a header and, by default, correct its checksum."""
    changed = bytearray(header[:512])
    changed[offset : offset + len(data)] = data
    if checksum:
        changed[148:156] = b" " * 8
        changed[148:156] = b"%06o\0 " % sum(changed)
    return bytes(changed) + header[512:]
