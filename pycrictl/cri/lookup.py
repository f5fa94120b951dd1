"""Pods and containers by what people type: an ID, its beginning, or a name.

The CRI finds a container by the beginning of its ID on some runtimes and never by its name. These
functions ask for the lists once and decide here, so that the answer is the same on every runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pycrictl._proto import cri_pb2
from pycrictl.cri import lists
from pycrictl.errors import NotFound, UsageError

if TYPE_CHECKING:
    from pycrictl.cri.client import CriClient

SHOWN_ID_CHARS: Final = 13
LISTED_MATCHES: Final = 10


def find_pod(client: CriClient, text: str) -> cri_pb2.PodSandbox:
    """The pod sandbox that ``text`` names by ID, unique beginning of one, or (NAMESPACE/)NAME.

    Of several sandboxes of one pod (same UID; earlier attempts stay listed) the newest is meant.

    Raises:
        NotFound: there is no such pod.
        UsageError: several pods match; the message lists them.
    """
    pods = lists.pods(client)
    namespace, slash, name = text.partition("/")
    matches = [pod for pod in pods if pod.id == text]
    if not matches and slash:
        matches = [
            pod for pod in pods if pod.metadata.namespace == namespace and pod.metadata.name == name
        ]
    elif not matches:
        matches = [pod for pod in pods if pod.metadata.name == text]
        matches = matches or [pod for pod in pods if pod.id.startswith(text)]
    if not matches:
        raise NotFound(f'no pod "{text}"', hint="'crictl pods' lists the pods of the node")
    newest: dict[str, cri_pb2.PodSandbox] = {}
    for pod in sorted(matches, key=lambda pod: pod.created_at):
        newest[pod.metadata.uid or pod.id] = pod
    if len(newest) > 1:
        found = [
            f"{pod.id[:SHOWN_ID_CHARS]} ({pod.metadata.namespace}/{pod.metadata.name})"
            for pod in newest.values()
        ]
        raise _ambiguous("pod", text, found)
    return next(iter(newest.values()))


def find_container(
    client: CriClient, text: str, *, pod_sandbox_id: str = ""
) -> cri_pb2.Container | None:
    """The container that ``text`` names by ID, unique beginning of one, or name.

    None if there is no such container.

    Of several attempts of one container of one pod the newest is meant.

    Raises:
        UsageError: containers of several pods match; the message lists them.
    """
    containers = lists.containers(client, cri_pb2.ContainerFilter(pod_sandbox_id=pod_sandbox_id))
    matches = [container for container in containers if container.id == text]
    matches = matches or [c for c in containers if c.metadata.name == text]
    matches = matches or [c for c in containers if c.id.startswith(text)]
    newest: dict[tuple[str, str], cri_pb2.Container] = {}
    for container in sorted(matches, key=lambda container: container.created_at):
        newest[container.pod_sandbox_id, container.metadata.name] = container
    if len(newest) > 1:
        found = [
            f"{c.id[:SHOWN_ID_CHARS]} (in pod {c.pod_sandbox_id[:SHOWN_ID_CHARS]})"
            for c in newest.values()
        ]
        raise _ambiguous("container", text, found)
    return next(iter(newest.values()), None)


def _ambiguous(kind: str, text: str, found: list[str]) -> UsageError:
    listed = ", ".join(found[:LISTED_MATCHES])
    more = f" and {len(found) - LISTED_MATCHES} more" if len(found) > LISTED_MATCHES else ""
    return UsageError(f'"{text}" matches {len(found)} {kind}s: {listed}{more}')
