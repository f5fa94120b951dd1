"""The methods that may be used for a container of this node, the best first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from pycrictl._proto import cri_pb2
from pycrictl.copy.method import NAMES, Method
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.spec import ContainerPath, not_running
from pycrictl.copy.tree.rootfs import raise_descriptor_limit
from pycrictl.cri.lists.lookup import Lookup

if TYPE_CHECKING:
    from pycrictl.cri.calls.client import CriClient
    from pycrictl.streaming.remote_command import Choice
    from pycrictl.streaming.target import TlsFiles


class CopyOptions(NamedTuple):
    """How to copy.

    Attributes:
        method: one of ``NAMES``, or ``auto`` for the first that can be used.
        follow: copy what the source points to, if it is a link.
    """

    rules: Rules
    method: str = "auto"
    follow: bool = False
    choice: Choice = "auto"
    tls: TlsFiles | None = None


def on_this_node(
    client: CriClient, container: ContainerPath, options: CopyOptions
) -> Iterator[Method]:
    """Return the methods to try for a container of the runtime that is asked."""
    return _methods(client, _find(client, container), options)


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
