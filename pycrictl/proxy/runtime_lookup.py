"""The proxy's own queries to the runtime: whether an image is present, which pod an ID names."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import ConnectError, PycrictlError
from pycrictl.base.units import quote
from pycrictl.copy.rules.outcome import refusal_codes
from pycrictl.proxy.upstream import Answer, Upstream
from pycrictl.pulls.messages import WHOLE_NODE
from pycrictl.runtime.cri.calls.client import method
from pycrictl.streams.wire.codes import (
    DEADLINE_EXCEEDED,
    INTERNAL,
    INVALID_ARGUMENT,
    NOT_FOUND,
    UNAVAILABLE,
)

if TYPE_CHECKING:
    from google.protobuf.message import Message

TIMEOUT_S: Final = 5.0

MAX_AT_ONCE: Final = 16


class CallFailed(PycrictlError):
    """A query failed; ``answer`` is what the proxy's client gets."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.message)
        self.answer = answer


class PodKey(NamedTuple):
    """A pod as kubelet names it in every request (CRI ``PodSandboxMetadata``)."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class PullTarget(NamedTuple):
    """The pulls of a pod, of one image in it, or of the whole node (no ``pod``)."""

    pod: PodKey | None
    image: str = ""

    def __str__(self) -> str:
        return f"{self.pod or 'node'} {self.image}".rstrip()


def pod_key(metadata: cri_pb2.PodSandboxMetadata) -> PodKey | None:
    if not (metadata.name or metadata.uid):
        return None
    return PodKey(metadata.namespace, metadata.name, metadata.uid)


async def problem(upstream: Upstream, timeout_s: float) -> str:
    """Return why the runtime does not answer; empty if it does."""
    request = cri_pb2.VersionRequest().SerializeToString()
    answer = await upstream.unary(method("Version").path, request, timeout_s=timeout_s)
    return answer.message if answer.code in (UNAVAILABLE, DEADLINE_EXCEEDED) else ""


class RuntimeLookup:
    """Queries the runtime; failures are raised as CallFailed."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._free = asyncio.Semaphore(MAX_AT_ONCE)

    async def is_present(self, image: cri_pb2.ImageSpec) -> bool:
        """Return whether the runtime has an image of that reference; False if the query fails."""
        try:
            answer = await self.call("ImageStatus", cri_pb2.ImageStatusRequest(image=image))
        except CallFailed:
            return False
        return bool(answer.HasField("image"))

    async def target(self, pod_sandbox_id: str, container_id: str) -> PullTarget:
        if pod_sandbox_id == WHOLE_NODE and not container_id:
            return PullTarget(None)
        if not pod_sandbox_id and not container_id:
            raise _failure(INVALID_ARGUMENT, "neither a pod sandbox ID nor a container ID is given")
        image = ""
        if container_id:
            container = await self.container(container_id)
            if pod_sandbox_id and not container.pod_sandbox_id.startswith(pod_sandbox_id):
                raise _failure(
                    NOT_FOUND,
                    f"no container {quote(container_id)} in the pod {quote(pod_sandbox_id)}",
                )
            pod_sandbox_id = container.pod_sandbox_id
            image = container.image.user_specified_image or container.image.image
        return PullTarget(await self._pod(pod_sandbox_id), image)

    async def _pod(self, pod_sandbox_id: str) -> PodKey:
        request = cri_pb2.ListPodSandboxRequest()
        request.filter.id = pod_sandbox_id
        answer = await self.call("ListPodSandbox", request)
        pods = _matches(answer.items, pod_sandbox_id)
        key = pod_key(pods[0].metadata) if len(pods) == 1 else None
        if key is None:
            raise _failure(NOT_FOUND, f"no pod sandbox {quote(pod_sandbox_id)}")
        return key

    async def container(self, container_id: str) -> cri_pb2.Container:
        """Return the container with that ID, or the only one whose ID starts with it."""
        request = cri_pb2.ListContainersRequest()
        request.filter.id = container_id
        answer = await self.call("ListContainers", request)
        containers: list[cri_pb2.Container] = _matches(answer.containers, container_id)
        if len(containers) != 1:
            raise _failure(NOT_FOUND, f"no container {quote(container_id)}")
        return containers[0]

    async def call(self, name: str, request: Message) -> Any:
        called = method(name)
        async with self._free:
            answer = await self._upstream.unary(
                called.path, request.SerializeToString(), timeout_s=TIMEOUT_S
            )
        if answer.code or answer.response is None:
            raise CallFailed(answer if answer.code else _broken(name))
        try:
            return called.response_type.FromString(answer.response)
        except DecodeError:
            raise CallFailed(_broken(name)) from None


def refusal(exc: PycrictlError | DecodeError) -> Answer:
    """Return the answer to a call that the proxy cannot fulfil."""
    if isinstance(exc, CallFailed):
        return exc.answer
    if isinstance(exc, DecodeError):
        return Answer(INVALID_ARGUMENT, "pycrictl proxy: the request cannot be read")
    code, _ = refusal_codes(exc)
    if isinstance(exc.__cause__, FileNotFoundError | NotADirectoryError):
        code = NOT_FOUND
    hint = f" ({exc.hint})" if exc.hint and not isinstance(exc, ConnectError) else ""
    return Answer(code, f"pycrictl proxy: {exc.message}{hint}")


def _matches(items: Any, wanted: str) -> list[Any]:
    """Return the object with that ID, or else all whose ID starts with it."""
    exact = [item for item in items if item.id == wanted]
    return exact or [item for item in items if item.id.startswith(wanted)]


def _failure(code: int, message: str) -> CallFailed:
    return CallFailed(Answer(code, f"pycrictl proxy: {message}"))


def _broken(name: str) -> Answer:
    return Answer(INTERNAL, f"pycrictl proxy: the runtime's answer to {name} cannot be read")
