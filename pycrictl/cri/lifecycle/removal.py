"""Removing containers and pods: all targets at once, and one failure stops no other.

Each function yields one ``Removal`` a target in the order given, as soon as it is there.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from pycrictl import noderoot
from pycrictl._proto import cri_pb2
from pycrictl.cri.calls.client import each
from pycrictl.cri.lifecycle.control import stop_container, stop_pod
from pycrictl.cri.lists import fetch, lookup
from pycrictl.cri.lists.lookup import ObjectRef
from pycrictl.errors import FailedPrecondition, PycrictlError, RemoteProtocolError
from pycrictl.units import quote

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from pycrictl.cri.calls.client import CriClient


def remove_logs(log_path: str) -> tuple[str, ...]:
    """Delete a container's log file and its rotated ones (``LOG_PATH.*``); return warnings.

    The path comes from the runtime. Only files and symbolic links in one existing directory are
    deleted, never what a link points to; a path that is relative, holds ``..`` or whose directory
    is a link is left alone. A missing file is fine: the runtime may run elsewhere.
    """
    path = PurePosixPath(log_path)
    if not log_path:
        return ()
    if not path.is_absolute() or ".." in path.parts or not path.name or "\0" in log_path:
        return (f"the log path {quote(log_path, 4096)} is not safe to delete; left alone",)
    try:
        here = noderoot.locate(str(path.parent), follow=False)
        folder = os.open(here, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return ()
    except OSError as error:
        return (_failure(str(path), error),)
    warnings = []
    try:
        # Not glob: a log path may hold characters that mean something to it.
        for name in sorted(os.listdir(folder)):  # noqa: PTH208 (by descriptor)
            if name != path.name and not name.startswith(f"{path.name}."):
                continue
            try:
                if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=folder)
            except FileNotFoundError:
                continue
            except OSError as error:
                warnings.append(_failure(str(path.parent / name), error))
    finally:
        os.close(folder)
    return tuple(warnings)


def _failure(path: str, error: OSError) -> str:
    reason = (error.strerror or str(error)).lower()
    return f"the log file {quote(path, 4096)} could not be deleted: {reason}"


@dataclass(frozen=True, slots=True)
class Removal:
    """What became of one target; ``missing_log`` was to be removed and did not exist."""

    target: str
    is_stopped: bool = False
    error: PycrictlError | None = None
    warnings: tuple[str, ...] = ()
    missing_log: str = ""


def all_containers(client: CriClient) -> list[ObjectRef]:
    return [ObjectRef(container.id, container.id) for container in fetch.containers(client)]


def all_pods(client: CriClient) -> list[ObjectRef]:
    return [ObjectRef(pod.id, pod.id) for pod in fetch.pods(client)]


def remove_containers(
    client: CriClient, targets: Sequence[ObjectRef], *, force: bool, keep_logs: bool
) -> Iterator[Removal]:
    """Remove containers, and their log files on this host; running ones only by ``force``."""
    return each(client, partial(_remove_container, force=force, keep_logs=keep_logs), targets)


def remove_pods(
    client: CriClient, targets: Sequence[ObjectRef], *, force: bool
) -> Iterator[Removal]:
    """Remove pod sandboxes with their containers; ready ones only by ``force``."""
    return each(client, partial(_remove_pod, force=force), targets)


def _remove_container(
    client: CriClient, target: ObjectRef, *, force: bool, keep_logs: bool
) -> Removal:
    named = f"container {quote(target.text)}"
    is_stopped = False
    try:
        request = cri_pb2.ContainerStatusRequest(container_id=target.id)
        answer = _status(client, target, "ContainerStatus", request, named)
        if answer.status.state == cri_pb2.CONTAINER_RUNNING:
            if not force:
                raise _still_running(named)
            stop_container(client, target, grace_s=0)
            is_stopped = True
        removal = cri_pb2.RemoveContainerRequest(container_id=target.id)
        lookup.call(client, "RemoveContainer", removal, what=f"removing {named}")
    except PycrictlError as error:
        return Removal(target.text, is_stopped, error)
    if keep_logs:
        return Removal(target.text, is_stopped)
    path = answer.status.log_path
    missing = "" if os.path.lexists(noderoot.locate(path, follow=False)) else path
    return Removal(target.text, is_stopped, warnings=remove_logs(path), missing_log=missing)


def _remove_pod(client: CriClient, target: ObjectRef, *, force: bool) -> Removal:
    named = f"pod sandbox {quote(target.text)}"
    is_stopped = False
    try:
        request = cri_pb2.PodSandboxStatusRequest(pod_sandbox_id=target.id)
        answer = _status(client, target, "PodSandboxStatus", request, named)
        if answer.status.state == cri_pb2.SANDBOX_READY:
            if not force:
                raise _still_running(named)
            stop_pod(client, target)
            is_stopped = True
        remove_pod(client, target)
    except PycrictlError as error:
        return Removal(target.text, is_stopped, error)
    return Removal(target.text, is_stopped)


def remove_pod(client: CriClient, target: ObjectRef) -> None:
    request = cri_pb2.RemovePodSandboxRequest(pod_sandbox_id=target.id)
    what = f"removing pod sandbox {quote(target.text)}"
    lookup.call(client, "RemovePodSandbox", request, what=what)


def _status(client: CriClient, target: ObjectRef, call: str, request: Message, named: str) -> Any:
    if target.error is not None:
        raise target.error
    answer = lookup.call(client, call, request, what=f"removing {named}")
    # Less than is wanted of a status that is shown: what is broken can still be removed. But an
    # empty status says nothing about the state: its zero means a running pod.
    if not answer.status.id:
        raise RemoteProtocolError(f"the runtime gave no status of {named}")
    return answer


def _still_running(named: str) -> FailedPrecondition:
    return FailedPrecondition(f"{named} is running", hint="stop it first, or use --force")
