"""Archives to send: valid ones by the standard library, hostile ones byte by byte."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from typing import Final

from tests.copy.hostile import archive, evil, hard, member, patch, pax, sym


def tar(*entries: tarfile.TarInfo | tuple[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as out:
        for entry in entries:
            if isinstance(entry, tuple):
                name, content = entry
                info = tarfile.TarInfo(name)
                info.size = len(content)
                out.addfile(info, io.BytesIO(content))
            else:
                out.addfile(entry)
    return made.getvalue()


def entry(
    name: str, kind: bytes = tarfile.REGTYPE, *, mode: int = 0o644, to: str = ""
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.linkname = kind, mode, to
    return info


def listing(data: bytes) -> dict[str, tarfile.TarInfo]:
    """Return the entries of an archive by name, without leading `./` and trailing slashes."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {name_of(member.name): member for member in archive.getmembers()}


def name_of(name: str) -> str:
    return name.removeprefix("./").rstrip("/") or "."


def content(data: bytes, name: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive.getmembers():
            if name_of(member.name) == name:
                file = archive.extractfile(member)
                assert file is not None, f"{name} is no file"
                return file.read()
    raise AssertionError(f"{name} is not in the archive")


HOSTILE: Final[dict[str, Callable[[], bytes]]] = {
    "a name with ..": lambda: archive(evil(b"../escaped")),
    "a name that is .. further down": lambda: archive(evil(b"a/b/../../../escaped")),
    ".. in a pax record": lambda: archive(pax((b"path", b"../escaped")), evil(b"good")),
    ".. in a GNU long name": lambda: archive(member(b"L", b"L", b"../escaped\0"), evil(b"good")),
    "a file below a link that leads out": lambda: archive(sym(b"l", b"/tmp"), evil(b"l/escaped")),
    "a file below a relative link": lambda: archive(sym(b"l", b"../.."), evil(b"l/escaped")),
    "a hard link to a file outside": lambda: archive(hard(b"h", b"/etc/passwd")),
    "a hard link by ..": lambda: archive(hard(b"h", b"../../etc/passwd")),
    "a negative size": lambda: archive(patch(evil(b"x"), 124, b"\xff" * 12)),
    "two sizes": lambda: archive(pax((b"size", b"1024")), member(b"x", data=b"y" * 512)),
    "a name with NUL": lambda: archive(pax((b"path", b"a\x00b")), evil(b"x")),
    "two archives in one": lambda: archive(evil(b"x")) + archive(evil(b"y")),
}
"""Twelve kinds; each is ambiguous to readers, or leads out of the destination."""
