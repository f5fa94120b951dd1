"""Pods and containers by what people type: an ID, its beginning, or a name.

The CRI finds a container by the beginning of its ID on some runtimes and never by its name. These
functions ask for the lists once and decide here, so that the answer is the same on every runtime.
Where crictl takes only IDs, so does this; the error then says what a name stands for (``call``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from pycrictl._proto import cri_pb2
from pycrictl.cri.lists import fetch
from pycrictl.errors import NotFound, PycrictlError, UsageError
from pycrictl.units import quote

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from pycrictl.cri.calls.client import CriClient

SHOWN_ID_CHARS: Final = 13
LISTED_MATCHES: Final = 10

POD_LABEL: Final = "io.kubernetes.pod.name"
NAMESPACE_LABEL: Final = "io.kubernetes.pod.namespace"
"""Labels in which the kubelet keeps a container's pod."""

CONTAINERS_HINT: Final = "'pycrictl ps -a' lists the containers of the node"
PODS_HINT: Final = "'pycrictl pods' lists the pods of the node"
IMAGES_HINT: Final = "'pycrictl images' lists the images of the node"

WHOLE_ID: Final = re.compile(r"[0-9a-f]{64}")
_ID_START: Final = re.compile(r"[0-9a-f]{1,64}")


def find_pod(client: CriClient, text: str) -> cri_pb2.PodSandbox:
    """Return the pod sandbox that ``text`` names: an ID, the beginning of one, (NAMESPACE/)NAME.

    Of several sandboxes of one pod (same UID; earlier attempts stay listed) the newest is meant.

    Raises:
        NotFound: there is no such pod.
        UsageError: several pods match; the message lists them.
    """
    pods = fetch.pods(client)
    matches = [pod for pod in pods if pod.id == text]
    matches = matches or _pods_named(pods, text)
    matches = matches or [pod for pod in pods if pod.id.startswith(text)]
    if not matches:
        raise NotFound(f"no pod {quote(text)}", hint=PODS_HINT)
    newest = _newest_pods(matches)
    if len(newest) > 1:
        found = [
            f"{pod.id[:SHOWN_ID_CHARS]} ({pod.metadata.namespace}/{pod.metadata.name})"
            for pod in newest
        ]
        raise _ambiguous("pod", text, found)
    return newest[0]


def find_container(
    client: CriClient, text: str, *, pod_sandbox_id: str = ""
) -> cri_pb2.Container | None:
    """Return the container that ``text`` names: an ID, the beginning of one, or a name.

    None if there is no such container.

    Of several attempts of one container of one pod the newest is meant.

    Raises:
        UsageError: containers of several pods match; the message lists them.
    """
    containers = fetch.containers(client, cri_pb2.ContainerFilter(pod_sandbox_id=pod_sandbox_id))
    matches = [container for container in containers if container.id == text]
    matches = matches or [c for c in containers if c.metadata.name == text]
    matches = matches or [c for c in containers if c.id.startswith(text)]
    newest = _newest_containers(matches)
    if len(newest) > 1:
        found = [
            f"{c.id[:SHOWN_ID_CHARS]} (in pod {c.pod_sandbox_id[:SHOWN_ID_CHARS]})" for c in newest
        ]
        raise _ambiguous("container", text, found)
    return next(iter(newest), None)


def call(client: CriClient, name: str, request: Message, *, what: str) -> Any:
    """Make a call about one container or pod sandbox, which the CRI knows by its ID only.

    Raises:
        PycrictlError: it failed. Where there is no such ID, the hint says what the word names.
    """
    try:
        return client.call(name, request, what=what)
    except NotFound as error:
        error.hint = error.hint or hint(client, request)
        raise


def hint(client: CriClient, request: Any) -> str | None:
    """Return a hint for a request whose ID names nothing. It never raises.

    It may be a name, or an ID of the other kind. The runtime is asked for one list at most.
    """
    if "image" in request.DESCRIPTOR.fields_by_name:
        return IMAGES_HINT
    is_pod = "pod_sandbox_id" in request.DESCRIPTOR.fields_by_name
    text = request.pod_sandbox_id if is_pod else request.container_id
    try:
        return _other_kind(client, text, is_pod=is_pod) or _meaning(client, text, is_pod=is_pod)
    except PycrictlError:
        return None


def _other_kind(client: CriClient, text: str, *, is_pod: bool) -> str | None:
    if not _ID_START.fullmatch(text):
        return None
    try:
        if is_pod:
            client.call("ContainerStatus", cri_pb2.ContainerStatusRequest(container_id=text))
            return "it is a container: 'pycrictl inspect' shows it"
        client.call("PodSandboxStatus", cri_pb2.PodSandboxStatusRequest(pod_sandbox_id=text))
        return "it is a pod: 'pycrictl inspectp' shows it"
    except PycrictlError:
        return None


def _meaning(client: CriClient, text: str, *, is_pod: bool) -> str | None:
    if WHOLE_ID.fullmatch(text):
        return None
    if is_pod:
        kind, command = "pod", "pods"
        ids = [pod.id for pod in _newest_pods(_pods_named(fetch.pods(client), text))]
    else:
        kind, command = "container", "ps -a"
        named = _containers_named(fetch.containers(client), text)
        ids = [container.id for container in _newest_containers(named)]
    if len(ids) > 1:
        listing = f"{command} --name {text.rpartition('/')[2]}"
        return f"that is the name of {len(ids)} {kind}s: 'pycrictl {listing}' lists them"
    return f"that is the name of {kind} {ids[0][:SHOWN_ID_CHARS]}" if ids else None


def _pods_named(pods: Iterable[cri_pb2.PodSandbox], text: str) -> list[cri_pb2.PodSandbox]:
    """Return those of a NAME or NAMESPACE/NAME."""
    namespace, _, name = text.rpartition("/")
    return [
        pod
        for pod in pods
        if pod.metadata.name == name and namespace in ("", pod.metadata.namespace)
    ]


def _containers_named(
    containers: Iterable[cri_pb2.Container], text: str
) -> list[cri_pb2.Container]:
    """Return those of a NAME, POD/NAME or NAMESPACE/POD/NAME, as far as labels name the pod."""
    owner, _, name = text.rpartition("/")
    namespace, _, pod = owner.rpartition("/")
    return [
        container
        for container in containers
        if container.metadata.name == name
        and pod in ("", container.labels.get(POD_LABEL))
        and namespace in ("", container.labels.get(NAMESPACE_LABEL))
    ]


def _newest_pods(pods: Iterable[cri_pb2.PodSandbox]) -> list[cri_pb2.PodSandbox]:
    """Return the newest sandbox of each pod."""
    newest: dict[str, cri_pb2.PodSandbox] = {}
    for pod in sorted(pods, key=lambda pod: pod.created_at):
        newest[pod.metadata.uid or pod.id] = pod
    return list(newest.values())


def _newest_containers(containers: Iterable[cri_pb2.Container]) -> list[cri_pb2.Container]:
    """Return the newest attempt of each container of each pod."""
    newest: dict[tuple[str, str], cri_pb2.Container] = {}
    for container in sorted(containers, key=lambda container: container.created_at):
        newest[container.pod_sandbox_id, container.metadata.name] = container
    return list(newest.values())


def _ambiguous(kind: str, text: str, found: list[str]) -> UsageError:
    listed = ", ".join(found[:LISTED_MATCHES])
    more = f" and {len(found) - LISTED_MATCHES} more" if len(found) > LISTED_MATCHES else ""
    return UsageError(f"{quote(text)} matches {len(found)} {kind}s: {listed}{more}")
