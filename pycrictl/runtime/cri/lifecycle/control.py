"""Creating, starting, stopping, updating, checkpointing and removing containers and pods.

``in_turn`` processes targets one after the other, in the given order, ``remove`` several at once.
If one fails, the others are still processed, unless the runtime cannot be reached. Both are
generators: the caller can report each target as soon as the runtime has answered for it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Any, Final

from pycrictl._proto import cri_pb2
from pycrictl.base import noderoot
from pycrictl.base.errors import (
    ConnectError,
    FailedPrecondition,
    Interrupted,
    PycrictlError,
    RemoteProtocolError,
    Unavailable,
    reason_of,
)
from pycrictl.base.units import quote, quote_path
from pycrictl.runtime.cri.calls.client import CriClient, for_each, method
from pycrictl.runtime.cri.lists import lookup
from pycrictl.runtime.cri.lists.lookup import Kind, ObjectRef

_DOING: Final = {
    "StartContainer": "starting",
    "UpdateContainerResources": "updating",
    "CheckpointContainer": "checkpointing",
    "StopContainer": "stopping",
    "StopPodSandbox": "stopping",
    # A status is requested here only before a removal.
    "ContainerStatus": "removing",
    "PodSandboxStatus": "removing",
    "RemoveContainer": "removing",
    "RemovePodSandbox": "removing",
}


def every(client: CriClient, kind: Kind, *, running: bool = False) -> list[ObjectRef]:
    condition = cri_pb2.ContainerFilter()
    if running:
        condition.state.state = cri_pb2.CONTAINER_RUNNING
    listed = lookup.pods(client) if kind == "pod" else lookup.containers(client, condition)
    return [ObjectRef(item.id, item.id) for item in listed]


def act(client: CriClient, name: str, target: ObjectRef, **fields: Any) -> Any:
    """Make a call about one container or pod; ``fields`` are further fields of its request."""
    if target.error is not None:
        raise target.error
    request_type = method(name).request_type
    is_pod = "pod_sandbox_id" in request_type.DESCRIPTOR.fields_by_name
    fields["pod_sandbox_id" if is_pod else "container_id"] = target.id
    action = f"{_DOING[name]} {_noun(is_pod)} {quote(target.text)}"
    return client.call(name, request_type(**fields), action=action)


def _noun(is_pod: bool) -> str:
    return "pod sandbox" if is_pod else "container"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one target.

    Attributes:
        target: the word that named it.
        error: why the request failed, else None.
        is_stopped: whether it was running and was stopped before its removal.
        warnings: log files that could not be deleted.
        missing_log: path of a log file to delete that did not exist, else "".
    """

    target: str
    error: PycrictlError | None = None
    is_stopped: bool = False
    warnings: tuple[str, ...] = ()
    missing_log: str = ""


def in_turn(
    client: CriClient, name: str, targets: Sequence[ObjectRef], **fields: Any
) -> Iterator[Outcome]:
    """Make one call per target, as ``act`` does.

    Raises:
        ConnectError, Unavailable: the runtime is gone; nothing more is attempted.
    """
    for target in targets:
        try:
            act(client, name, target, **fields)
        except (ConnectError, Unavailable):
            raise
        except PycrictlError as error:
            yield Outcome(target.text, error)
        else:
            yield Outcome(target.text)


def update_runtime_config(client: CriClient, *, pod_cidr: str) -> None:
    request = cri_pb2.UpdateRuntimeConfigRequest()
    request.runtime_config.network_config.pod_cidr = pod_cidr
    client.call("UpdateRuntimeConfig", request, action="updating the runtime's configuration")


def remove_logs(log_path: str) -> tuple[str, ...]:
    """Delete a container's log file and its rotated ones (``LOG_PATH.*``); return warnings.

    The path comes from the runtime. Only files and symbolic links in one existing directory are
    deleted, never the target of a link. Nothing is deleted if the path is relative or contains
    ``..``, or if its directory is a link. A missing file is no error: it may be on another host.
    """
    path = PurePosixPath(log_path)
    if not log_path:
        return ()
    if not path.is_absolute() or ".." in path.parts or not path.name or "\0" in log_path:
        return (f"the log path {quote_path(log_path)} is not safe to delete; left alone",)
    try:
        here = noderoot.locate(str(path.parent), follow=False)
        folder = os.open(here, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return ()
    except OSError as error:
        return (_failure(str(path), error),)
    warnings = []
    try:
        # Not glob: a log path may contain its special characters.
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
    reason = reason_of(error)
    return f"the log file {quote_path(path)} could not be deleted: {reason}"


def remove(
    client: CriClient,
    targets: Sequence[ObjectRef],
    kind: Kind,
    *,
    force: bool,
    keep_logs: bool = False,
) -> Iterator[Outcome]:
    """Remove pods with their containers, or containers with their log files on this host.

    Ready pods and running containers are removed only with ``force``. Errors as for ``in_turn``.
    """
    return for_each(client, partial(_remove, kind=kind, force=force, keep_logs=keep_logs), targets)


def _remove(
    client: CriClient, target: ObjectRef, *, kind: Kind, force: bool, keep_logs: bool
) -> Outcome:
    is_pod = kind == "pod"
    kind_name = "PodSandbox" if is_pod else "Container"
    named = f"{_noun(is_pod)} {quote(target.text)}"
    is_stopped = False
    try:
        status = act(client, f"{kind_name}Status", target).status
        # Fewer fields are required than for showing a status: broken objects can be removed. But
        # the state in an empty status is unknown: its zero would mean a ready pod.
        if not status.id:
            raise RemoteProtocolError(f"the runtime gave no status for {named}")
        if status.state == (cri_pb2.SANDBOX_READY if is_pod else cri_pb2.CONTAINER_RUNNING):
            if not force:
                raise FailedPrecondition(
                    f"{named} is running", hint="stop it first, or use --force"
                )
            act(client, f"Stop{kind_name}", target)
            is_stopped = True
        act(client, f"Remove{kind_name}", target)
    except (ConnectError, Unavailable):
        raise
    except PycrictlError as error:
        return Outcome(target.text, error, is_stopped)
    if is_pod or keep_logs:
        return Outcome(target.text, None, is_stopped)
    path = status.log_path
    missing = "" if os.path.lexists(noderoot.locate(path, follow=False)) else path
    return Outcome(target.text, None, is_stopped, remove_logs(path), missing)


# Creating


Pull = Callable[[cri_pb2.PullImageRequest], object]
"""Pulls one image, or raises; the caller decides how its progress is shown."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The input for creating a container; without ``pull``, its images must be on the node."""

    container: cri_pb2.ContainerConfig
    pod: cri_pb2.PodSandboxConfig
    pull: Pull | None = None
    auth: cri_pb2.AuthConfig | None = None


def run_pod(client: CriClient, config: cri_pb2.PodSandboxConfig, *, handler: str = "") -> str:
    request = cri_pb2.RunPodSandboxRequest(config=config, runtime_handler=handler)
    action = f"running pod sandbox {quote(config.metadata.name)}"
    return _id(client.call("RunPodSandbox", request, action=action).pod_sandbox_id, action)


def create_container(client: CriClient, pod_sandbox_id: str, launch: Launch) -> str:
    if launch.pull is not None:
        for pull_request in pull_requests(launch):
            launch.pull(pull_request)
    request = cri_pb2.CreateContainerRequest(
        pod_sandbox_id=pod_sandbox_id, config=launch.container, sandbox_config=launch.pod
    )
    action = f"creating container {quote(launch.container.metadata.name)}"
    return _id(client.call("CreateContainer", request, action=action).container_id, action)


def run_container(client: CriClient, launch: Launch, *, handler: str = "") -> str:
    """Run a pod sandbox, create the container in it and start it; return the container's ID.

    If a later step fails or is interrupted, the sandbox is removed again; the error's hint says so.
    """
    pod_id = run_pod(client, launch.pod, handler=handler)
    with _removed_on_failure(client, pod_id):
        container_id = create_container(client, pod_id, launch)
        request = cri_pb2.StartContainerRequest(container_id=container_id)
        action = f"starting container {quote(launch.container.metadata.name)}"
        client.call("StartContainer", request, action=action)
    return container_id


def pull_requests(launch: Launch) -> Iterator[cri_pb2.PullImageRequest]:
    mounts = launch.container.mounts
    images = [launch.container.image, *(mount.image for mount in mounts if mount.image.image)]
    for image in images:
        request = cri_pb2.PullImageRequest(auth=launch.auth, sandbox_config=launch.pod)
        request.image.image = image.image
        request.image.annotations.update(image.annotations)
        yield request


@contextmanager
def _removed_on_failure(client: CriClient, pod_sandbox_id: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        pod = f"pod sandbox {quote(pod_sandbox_id)}"
        try:
            target = ObjectRef(pod_sandbox_id, pod_sandbox_id)
            act(client, "StopPodSandbox", target)
            act(client, "RemovePodSandbox", target)
        except PycrictlError as failure:
            outcome = (
                f"its {pod} is left over ({failure.message}): remove it with 'pycrictl rmp --force'"
            )
        else:
            outcome = f"its {pod} was removed again"
        if isinstance(error, KeyboardInterrupt):
            raise Interrupted(f"interrupted; {outcome}") from None
        if isinstance(error, PycrictlError):
            error.hint = f"{error.hint}; {outcome}" if error.hint else outcome
        raise


def _id(text: str, action: str) -> str:
    if not text:
        raise RemoteProtocolError(f"{action}: the runtime answered without an ID")
    return text
