"""Copying on the node itself, through the root directory of the container's first process.

Nothing runs in the container, so it needs neither a shell nor ``tar``. What the container sees is
what is copied: its volumes are there too. It must be a container of this machine that shares the
kernel: the file systems of a virtual machine are not to be seen from here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

from pycrictl._proto import cri_pb2
from pycrictl.copy.archive import Unpacker, pack
from pycrictl.copy.arrival import Summary
from pycrictl.copy.content import CHUNK_BYTES, OnBytes
from pycrictl.copy.identity import ContainerRoot, FirstProcess
from pycrictl.copy.places import LocalRoot, Root, open_destination, open_source
from pycrictl.copy.policy import Rules
from pycrictl.copy.rootfs import raise_descriptor_limit
from pycrictl.copy.tree import TreeCopy
from pycrictl.copy.walk import OnSkip
from pycrictl.errors import CopyError, FailedPrecondition, Unimplemented
from pycrictl.units import quote

if TYPE_CHECKING:
    from pycrictl.cri.client import CriClient

Locate = Callable[[], FirstProcess]
"""Asks the runtime for a container's first process, every time it is called."""

_SHARED_KERNEL: Final = ("io.containerd.runc.", "io.containerd.runtime.v1.linux")
_OWN_KERNEL: Final = ("kata", "runsc", "gvisor", "firecracker", "hyperv", "wasm", "qemu")


def copy_from(
    locate: Locate,
    path: bytes,
    local: bytes,
    rules: Rules,
    *,
    follow: bool = False,
    on_bytes: OnBytes,
    on_skip: OnSkip,
) -> Summary:
    """Copy out of a container.

    Args:
        locate: finds the container's first process.
        path: in the container.
        local: where to; a path of this machine.
        rules: what the user allows.
        follow: copy what ``path`` points to, if it is a link.
        on_bytes: told how much content has been copied.
        on_skip: told what is left out.

    Raises:
        FailedPrecondition: the container does not run, or stopped meanwhile.
        CopyError: see ``Arrival`` and ``walk``; the destination is as it was.
    """
    with _root(locate) as root:
        return _copy(root, path, LocalRoot(), local, rules, follow, on_bytes, on_skip, root)


def copy_to(
    locate: Locate,
    local: bytes,
    path: bytes,
    rules: Rules,
    *,
    follow: bool = False,
    on_bytes: OnBytes,
    on_skip: OnSkip,
) -> Summary:
    """Copy into a container; as ``copy_from``, in the other direction."""
    with _root(locate) as root:
        return _copy(LocalRoot(), local, root, path, rules, follow, on_bytes, on_skip, root)


def pack_from(
    locate: Locate,
    path: bytes,
    *,
    follow: bool = False,
    on_bytes: OnBytes,
    on_skip: OnSkip,
) -> Iterator[memoryview]:
    """Yield what is at ``path`` in a container as an archive; see ``pack``."""
    with (
        _root(locate) as root,
        open_source(root, path, follow=follow) as source,
        closing(pack(source, on_skip=on_skip, on_bytes=on_bytes)) as pieces,
    ):
        yield from pieces
        root.check_running()


def unpack_to(
    locate: Locate,
    stream: int,
    path: bytes,
    rules: Rules,
    *,
    on_bytes: OnBytes,
    on_skip: OnSkip,
) -> Summary:
    """Unpack an archive that comes from a descriptor into a directory of a container."""
    with ExitStack() as stack:
        root = stack.enter_context(_root(locate))
        destination = stack.enter_context(open_destination(root, path))
        unpacker = stack.enter_context(
            Unpacker(destination, rules, on_skip=on_skip, on_bytes=on_bytes, single=False)
        )
        buffer = memoryview(bytearray(CHUNK_BYTES))
        while count := os.readv(stream, [buffer]):
            unpacker.receive_data(buffer[:count])
        root.check_running()
        summary = unpacker.finish()
        root.check_running()
        return summary


def locate(client: CriClient, container_id: str) -> FirstProcess:
    """Ask the runtime for a container's first process.

    Args:
        client: of the runtime service.
        container_id: the full ID.

    Raises:
        FailedPrecondition: the container does not run.
        Unimplemented: it has a kernel of its own, or the runtime does not tell.
    """
    request = cri_pb2.ContainerStatusRequest(container_id=container_id, verbose=True)
    answer = client.call("ContainerStatus", request)
    status = answer.status
    if status.state != cri_pb2.CONTAINER_RUNNING:
        raise FailedPrecondition(
            f"container {quote(container_id)} is not running",
            code="FailedPrecondition",
            hint="only running containers can be copied from or to",
        )
    info = _info(answer.info)
    check_kernel(_handler(client, info), container_id)
    pid = info.get("pid")
    # 0 stands for none, and 1 is the node's own.
    if not isinstance(pid, int) or pid <= 1:
        raise Unimplemented(
            f"the runtime does not tell the process of container {quote(container_id)}",
            code="Unimplemented",
        )
    uid, gid = _user(info)
    return FirstProcess(status.id or container_id, pid, status.started_at, uid, gid)


def check_kernel(handler: str, container_id: str) -> None:
    """Refuse a container whose file systems are not this kernel's.

    Args:
        handler: what the runtime calls the container's runtime, or empty.
    """
    is_known = handler.startswith("io.containerd.") and not handler.startswith(_SHARED_KERNEL)
    if is_known or any(word in handler.lower() for word in _OWN_KERNEL):
        raise Unimplemented(
            f"container {quote(container_id)} has a kernel of its own ({handler})",
            code="Unimplemented",
            hint="--method exec copies through a program in the container",
        )


def _copy(
    source_root: Root,
    source_path: bytes,
    target_root: Root,
    target_path: bytes,
    rules: Rules,
    follow: bool,
    on_bytes: OnBytes,
    on_skip: OnSkip,
    container: ContainerRoot,
) -> Summary:
    raise_descriptor_limit()
    with (
        open_source(source_root, source_path, follow=follow) as source,
        open_destination(target_root, target_path) as destination,
        TreeCopy(destination, rules, on_skip=on_skip) as copy,
    ):
        copy.run(source, on_bytes=on_bytes)
        # What a stopping container unmounts looks empty, and what is written to it is lost.
        container.check_running()
        summary = copy.commit()
        container.check_running()
        return summary


@contextmanager
def _root(locate: Locate) -> Iterator[ContainerRoot]:
    try:
        root = ContainerRoot(locate)
    except PermissionError as exc:
        raise CopyError(
            "the file systems of containers are closed to this user", hint="run as root"
        ) from exc
    with root:
        yield root


def _info(verbose: Mapping[str, str]) -> dict[str, Any]:
    """The runtime's own words about a container, as far as they are JSON."""
    try:
        info = json.loads(verbose["info"])
    except (KeyError, ValueError, RecursionError):
        return {}
    return info if isinstance(info, dict) else {}


def _handler(client: CriClient, info: dict[str, Any]) -> str:
    """What runs the container: containerd's own word, else the handler of its pod."""
    runtime_type = info.get("runtimeType")
    if isinstance(runtime_type, str):
        return runtime_type
    request = cri_pb2.ListPodSandboxRequest()
    request.filter.id = str(info.get("sandboxID", ""))
    pods = client.call("ListPodSandbox", request).items if request.filter.id else ()
    return " ".join(pod.runtime_handler for pod in pods)


def _user(info: dict[str, Any]) -> tuple[int, int]:
    """The numbers of the user that the container was started as; root if it is not told."""
    found: Any = info
    for key in ("runtimeSpec", "process", "user"):
        found = found.get(key) if isinstance(found, dict) else None
    numbers = [found.get(key, 0) if isinstance(found, dict) else 0 for key in ("uid", "gid")]
    uid, gid = (number if isinstance(number, int) else 0 for number in numbers)
    return uid, gid
