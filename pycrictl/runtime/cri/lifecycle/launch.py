"""Creating pods and containers from their configurations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import Interrupted, PycrictlError, RemoteProtocolError
from pycrictl.base.units import quote
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.lifecycle.control import act
from pycrictl.runtime.cri.lists.lookup import ObjectRef

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
    what = f"running pod sandbox {quote(config.metadata.name)}"
    return _id(client.call("RunPodSandbox", request, what=what).pod_sandbox_id, what)


def create_container(client: CriClient, pod_sandbox_id: str, launch: Launch) -> str:
    if launch.pull is not None:
        for pull_request in pull_requests(launch):
            launch.pull(pull_request)
    request = cri_pb2.CreateContainerRequest(
        pod_sandbox_id=pod_sandbox_id, config=launch.container, sandbox_config=launch.pod
    )
    what = f"creating container {quote(launch.container.metadata.name)}"
    return _id(client.call("CreateContainer", request, what=what).container_id, what)


def run_container(client: CriClient, launch: Launch, *, handler: str = "") -> str:
    """Run a pod sandbox, create the container in it and start it; return the container's ID.

    If a later step fails or is interrupted, the sandbox is removed again; the error's hint says so.
    """
    pod_id = run_pod(client, launch.pod, handler=handler)
    with _removed_on_failure(client, pod_id):
        container_id = create_container(client, pod_id, launch)
        request = cri_pb2.StartContainerRequest(container_id=container_id)
        what = f"starting container {quote(launch.container.metadata.name)}"
        client.call("StartContainer", request, what=what)
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


def _id(text: str, what: str) -> str:
    if not text:
        raise RemoteProtocolError(f"{what}: the runtime answered without an ID")
    return text
