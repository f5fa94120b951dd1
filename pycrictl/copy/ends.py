"""The caller's end of a copy, the same for every method.

A method (``method``) reads an archive out of a container, or writes one into it. At this end the
archive is a file tree on this machine, or a stream.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing

from pycrictl.copy.archive.archives import BeginAnew, StreamArchive, TreeArchive
from pycrictl.copy.archive.arrival import put
from pycrictl.copy.archive.pack import Census
from pycrictl.copy.method import Method
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.spec import SourceKind
from pycrictl.copy.tree.commit import sweep_root
from pycrictl.copy.tree.places import THIS_MACHINE, open_destination, open_sources
from pycrictl.copy.tree.walk import Watch


def copy_from(
    method: Method, path: bytes, local: bytes, rules: Rules, watch: Watch, *, follow: bool = False
) -> Summary:
    sweep_root(THIS_MACHINE)
    with (
        open_destination(THIS_MACHINE, local) as destination,
        method.read(path, rules, watch, follow=follow) as archive,
    ):
        if archive.tree is None:  # ``pieces`` counts the bytes
            watch = watch._replace(on_bytes=lambda _: None)
        while True:
            try:
                return put(archive, destination, rules, watch, check=archive.check)
            except BeginAnew as exc:
                watch.note(f"{exc.message}: starting over")


def copy_to(
    method: Method,
    local: Sequence[bytes],
    path: bytes,
    rules: Rules,
    watch: Watch,
    *,
    follow: bool = False,
) -> Summary:
    with open_sources(THIS_MACHINE, local, follow=follow) as source:
        return method.write(TreeArchive(source, watch.on_skip), path, rules, watch)


def pack_from(
    method: Method,
    path: bytes,
    rules: Rules,
    watch: Watch,
    *,
    follow: bool = False,
) -> Generator[memoryview, None, Summary]:
    """Yield a path of the container as an archive, and return a summary of its contents.

    Each piece is valid until the next is requested.
    """
    with method.read(path, rules, watch, follow=follow) as archive:
        census = Census(rules)
        with closing(archive.pieces()) as pieces:
            yield from census.through(pieces)
        archive.check()
        return census.summary


def unpack_to(
    method: Method,
    stream: int,
    path: bytes,
    rules: Rules,
    watch: Watch,
    *,
    kind: SourceKind | None = SourceKind.ARCHIVE,
) -> Summary:
    """Unpack an archive, read from a descriptor, into a directory of the container.

    If its ``kind`` is None, it is that of a single file or directory, and the path what that shall
    become.
    """
    with closing(StreamArchive(stream, kind)) as archive:
        return method.write(archive, path, rules, watch)
