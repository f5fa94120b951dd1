"""The copy methods: their interface, the choice among them, and the caller's end of a copy.

At the caller's end, which is the same for every method, the archive is a file tree on this machine,
or a stream.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

from pycrictl._proto import cri_pb2
from pycrictl.base.environ import raise_file_limit
from pycrictl.base.errors import Unimplemented
from pycrictl.copy.archive.archives import Archive, Outgoing, StreamArchive, TreeArchive
from pycrictl.copy.archive.arrival import put
from pycrictl.copy.archive.pack import Census
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.spec import ContainerPath, SourceKind, not_running
from pycrictl.copy.tree.commit import sweep_root
from pycrictl.copy.tree.places import THIS_MACHINE, open_destination, open_sources
from pycrictl.copy.tree.walk import Watch
from pycrictl.runtime.cri.lists.lookup import Lookup

if TYPE_CHECKING:
    from pycrictl.runtime.cri.calls.client import CriClient
    from pycrictl.streams.target import TlsFiles

log = logging.getLogger("pycrictl.copy")

NAMES: Final = ("rpc", "node")
"""The names of the methods, best first."""

_LEAST_DESCRIPTORS: Final = 64
"""With fewer, a failed copy might not even be able to remove its own files."""

T = TypeVar("T")


class Method(Protocol):
    """A way to read from and write to one container.

    ``read`` and ``write`` raise ``Unimplemented`` if the method cannot be used for this container,
    and only before anything was changed or read from a stream: the next method may be tried. Any
    other error concerns the copy itself, and another method would not help. After an error the
    destination is unchanged, unless the message says otherwise.
    """

    name: str

    def read(self, path: bytes, rules: Rules, watch: Watch) -> AbstractContextManager[Outgoing]:
        """Return a path of the container as an archive.

        Args:
            path: absolute, without ``..``.
            rules: also enforced by the receiver of the archive.
        """

    def write(self, archive: Archive, path: bytes, rules: Rules, watch: Watch) -> Summary:
        """Write an archive to a path of the container."""


Opened: TypeAlias = Callable[[ContainerPath, Watch], AbstractContextManager[Iterable[Method]]]
"""Yields the methods for a container."""


def first_to_serve(methods: Iterable[Method], act: Callable[[Method], T]) -> T:
    """Call ``act`` with the first usable method; ``methods`` is consumed no further."""
    refusals: list[tuple[str, Unimplemented]] = []
    for method in methods:
        log.debug("= trying the method %s", method.name)
        try:
            done = act(method)
        except Unimplemented as exc:
            log.debug("= the method %s cannot be used: %s", method.name, exc.message)
            refusals.append((method.name, exc))
        else:
            log.debug("= the method %s is used", method.name)
            return done
    if len(refusals) == 1:
        raise refusals[0][1]
    reasons = "; ".join(f"{name}: {exc.message}" for name, exc in refusals)
    hint = refusals[-1][1].hint if refusals else None
    raise Unimplemented(f"cannot copy to or from this container ({reasons})", hint=hint)


def on_this_node(
    client: CriClient, container: ContainerPath, method: str, tls: TlsFiles | None
) -> Iterator[Method]:
    """Yield the methods for a container: all of ``NAMES`` if the method is ``auto``."""
    name = "/".join(filter(None, (container.pod, container.container)))
    listed = Lookup(client).find_container(name)
    if listed.state != cri_pb2.CONTAINER_RUNNING:
        raise not_running(container.container)
    raise_file_limit(least=_LEAST_DESCRIPTORS)
    names = NAMES if method == "auto" else (method,)
    if "rpc" in names:
        from pycrictl.copy.transfer.over_rpc import OverRpc  # noqa: PLC0415 (only when tried)

        yield OverRpc(client, listed.id, tls=tls)
    if "node" in names:
        from pycrictl.copy import on_node  # noqa: PLC0415 (only when tried)

        yield on_node.OnNode(partial(on_node.locate_here, client, listed.id))


def copy_from(method: Method, path: bytes, local: bytes, rules: Rules, watch: Watch) -> Summary:
    sweep_root(THIS_MACHINE)
    with (
        open_destination(THIS_MACHINE, local) as destination,
        method.read(path, rules, watch) as archive,
    ):
        if archive.tree is None:  # ``pieces`` counts the bytes
            watch = watch._replace(on_bytes=lambda _: None)
        return put(archive, destination, rules, watch, check=archive.check)


def copy_to(
    method: Method, local: Sequence[bytes], path: bytes, rules: Rules, watch: Watch
) -> Summary:
    with open_sources(THIS_MACHINE, local, follow=rules.follow) as opened:
        source = opened._replace(whole_seconds=not rules.archive)
        return method.write(TreeArchive(source, watch.on_skip), path, rules, watch)


def pack_from(
    method: Method, path: bytes, rules: Rules, watch: Watch
) -> Generator[memoryview, None, Summary]:
    """Yield a path of the container as an archive, and return a summary of its contents.

    Each piece is valid until the next is requested.
    """
    # The program that unpacks the archive may keep times.
    with method.read(path, rules._replace(archive=True), watch) as archive:
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

    If ``kind`` is None, the archive holds a single file or directory. It gets the name ``path``, or
    goes into ``path`` if that is a directory.
    """
    with closing(StreamArchive(stream, kind)) as archive:
        return method.write(archive, path, rules, watch)
