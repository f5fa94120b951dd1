"""The calls of ``runtime.v1`` by name, from the generated descriptor, and their deadlines."""

from __future__ import annotations

from functools import cache
from typing import Any, Final, NamedTuple

from google.protobuf.message import Message

from pycrictl._proto import cri_pb2

FUNDAMENTAL: Final = frozenset(
    "Version Status ListPodSandbox PodSandboxStatus RunPodSandbox StopPodSandbox RemovePodSandbox"
    " ListContainers ContainerStatus CreateContainer StartContainer StopContainer RemoveContainer"
    " Exec ExecSync Attach PortForward ListImages ImageStatus PullImage RemoveImage".split()
)
"""Calls without which a server does not serve the CRI at all; others come with newer versions."""


class CriMethod(NamedTuple):
    """One call of the runtime or image service; none has a request stream.

    Its name is unique over both services.
    """

    name: str
    path: str
    request_type: type[Message]
    response_type: type[Message]
    is_stream: bool


@cache
def method(name: str) -> CriMethod:
    """Return the call of that name; a KeyError is a bug of the caller."""
    for service in cri_pb2.DESCRIPTOR.services_by_name.values():
        described = service.methods_by_name.get(name)
        if described is not None:
            return CriMethod(
                name=name,
                path=f"/{service.full_name}/{name}",
                request_type=getattr(cri_pb2, described.input_type.name),
                response_type=getattr(cri_pb2, described.output_type.name),
                is_stream=bool(described.server_streaming),
            )
    raise KeyError(name)


def deadline_s(name: str, request: Any, timeout_s: float) -> float | None:
    """Return the time limit of a call for a global timeout of ``timeout_s``; None for no limit.

    For ``StopContainer`` and ``ExecSync``, the timeout in the request is added. A pull, the stream
    of events, and an ``ExecSync`` without a timeout in its request have no limit.
    """
    match name:
        case "PullImage" | "GetContainerEvents":
            return None
        case "RunPodSandbox":
            return 2 * timeout_s
        case "StopContainer":
            return timeout_s + max(0, int(request.timeout))
        case "ExecSync":
            return timeout_s + int(request.timeout) if request.timeout > 0 else None
        case _:
            return timeout_s
