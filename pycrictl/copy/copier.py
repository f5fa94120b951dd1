"""Copies from and to one container, by the first method that can be used for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from pycrictl._proto import cri_pb2
from pycrictl.copy import ends
from pycrictl.copy.method import NAMES, Method, first_to_serve
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.spec import ContainerPath, not_running
from pycrictl.copy.tree.rootfs import raise_descriptor_limit
from pycrictl.copy.tree.watch import Watch
from pycrictl.cri.lists.lookup import Lookup

if TYPE_CHECKING:
    from pycrictl.copy.rules.summary import Summary
    from pycrictl.cri.calls.client import CriClient
    from pycrictl.streaming.remote_command import Choice
    from pycrictl.streaming.target import TlsFiles


class CopyOptions(NamedTuple):
    """How to copy.

    Attributes:
        rules: what is allowed and kept.
        method: one of ``NAMES``, or ``auto`` for the first that can be used.
        follow: copy what the source points to, if it is a link.
        choice: the transport of streams.
        tls: files for transports that are encrypted.
    """

    rules: Rules
    method: str = "auto"
    follow: bool = False
    choice: Choice = "auto"
    tls: TlsFiles | None = None


class Copier:
    """Copies from and to a running container. Paths in it are absolute; see ``Method``."""

    def __init__(self, methods: Callable[[], Iterable[Method]], options: CopyOptions) -> None:
        self._methods = methods
        self._options = options

    def copy_from(self, path: bytes, local: bytes, watch: Watch) -> Summary:
        """Copy out of the container, with this process's umask."""
        rules = self._options.rules._replace(umask=_umask())
        follow = self._options.follow
        return first_to_serve(
            self._methods(),
            lambda method: ends.copy_from(method, path, local, rules, watch, follow=follow),
        )

    def copy_to(self, local: bytes, path: bytes, watch: Watch) -> Summary:
        rules, follow = self._options.rules, self._options.follow
        return first_to_serve(
            self._methods(),
            lambda method: ends.copy_to(method, local, path, rules, watch, follow=follow),
        )

    def unpack_to(self, stream: int, path: bytes, watch: Watch) -> Summary:
        rules = self._options.rules
        return first_to_serve(
            self._methods(), lambda method: ends.unpack_to(method, stream, path, rules, watch)
        )

    def pack_from(self, path: bytes, write: Callable[[memoryview], None], watch: Watch) -> Summary:
        """Write what is at a path as an archive, and return what is in it."""
        options = self._options

        def act(method: Method) -> Summary:
            packing = ends.pack_from(method, path, options.rules, watch, follow=options.follow)
            with closing(packing):
                while True:
                    try:
                        piece = next(packing)
                    except StopIteration as end:
                        packed: Summary = end.value
                        return packed
                    write(piece)

        return first_to_serve(self._methods(), act)


def on_this_node(client: CriClient, container: ContainerPath, options: CopyOptions) -> Copier:
    """Return what copies from and to a container of the runtime that is asked."""
    container_id = _find(client, container)
    return Copier(lambda: _methods(client, container_id, options), options)


def _methods(client: CriClient, container_id: str, options: CopyOptions) -> Iterator[Method]:
    """Yield the methods to try. What each needs is loaded when its turn comes."""
    raise_descriptor_limit()
    names = NAMES if options.method == "auto" else (options.method,)
    if "rpc" in names:
        from pycrictl.copy.transfer.over_rpc import OverRpc  # noqa: PLC0415 (when its turn comes)

        has_others = len(names) > 1
        yield OverRpc(client, container_id, tls=options.tls, has_others=has_others)
    if "node" in names:
        from pycrictl.copy.node import on_node  # noqa: PLC0415 (when its turn comes)

        yield on_node.for_client(client, container_id)
    if "exec" in names:
        from pycrictl.copy.exec.over_exec import OverExec  # noqa: PLC0415 (when its turn comes)
        from pycrictl.copy.exec.remote import Remote  # noqa: PLC0415 (when its turn comes)

        remote = Remote(client, container_id, choice=options.choice, tls=options.tls)
        yield OverExec(remote)


def _find(client: CriClient, path: ContainerPath) -> str:
    container = Lookup(client).find_container("/".join(filter(None, (path.pod, path.container))))
    if container.state != cri_pb2.CONTAINER_RUNNING:
        raise not_running(path.container)
    return container.id


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
