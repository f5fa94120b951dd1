"""Requests for sessions with containers: running commands, attaching, forwarding ports."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import Message

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import PycrictlError, RemoteProtocolError
from pycrictl.runtime.cri.calls.client import CriClient

Outcome = int | PycrictlError | None
"""A command's exit status, or why it did not run to its end; None if the user detached."""


def running(shown: str) -> str:
    """Return the action for error messages; ``shown`` is the container, in quotes."""
    return f"running a command in container {shown}"


def exec_url(
    client: CriClient,
    container_id: str,
    command: Sequence[str],
    *,
    stdin: bool,
    tty: bool,
    shown: str,
) -> str:
    """Return the URL of a stream that runs a command in a container, valid for one request."""
    request = cri_pb2.ExecRequest(
        container_id=container_id, cmd=command, tty=tty, stdin=stdin, stdout=True, stderr=not tty
    )
    return _url(client, "Exec", request, running(shown))


def attach_url(client: CriClient, container_id: str, *, stdin: bool, tty: bool, shown: str) -> str:
    request = cri_pb2.AttachRequest(
        container_id=container_id, tty=tty, stdin=stdin, stdout=True, stderr=not tty
    )
    return _url(client, "Attach", request, f"attaching to container {shown}")


def forward_url(client: CriClient, pod_id: str, *, shown: str) -> str:
    """Return the URL of a stream that forwards ports, which are named on that stream."""
    request = cri_pb2.PortForwardRequest(pod_sandbox_id=pod_id)
    return _url(client, "PortForward", request, f"forwarding ports of pod sandbox {shown}")


def _url(client: CriClient, name: str, request: Message, action: str) -> str:
    url: str = client.call(name, request, action=action).url
    if not url:
        raise RemoteProtocolError(f"{action}: the runtime gave no URL for the stream")
    return url


def exec_sync(
    client: CriClient, container_id: str, command: Sequence[str], *, limit_s: int, shown: str
) -> cri_pb2.ExecSyncResponse:
    """Run a command and return its whole output; a ``limit_s`` of 0 means no limit."""
    request = cri_pb2.ExecSyncRequest(container_id=container_id, cmd=command, timeout=limit_s)
    answer: cri_pb2.ExecSyncResponse = client.call("ExecSync", request, action=running(shown))
    return answer
