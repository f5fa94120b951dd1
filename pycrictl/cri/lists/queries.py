"""Containers and pods of the node, filtered here by what the CRI cannot filter by."""

from __future__ import annotations

import re
from collections.abc import Container as Collection
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from pycrictl._proto import cri_pb2
from pycrictl.cri.calls.client import call_each
from pycrictl.cri.calls.redact import quote_reference
from pycrictl.cri.lists import fetch
from pycrictl.cri.lists.fetch import newest_count, newest_first, pattern
from pycrictl.cri.lists.lookup import NAMESPACE_LABEL, select_by_id
from pycrictl.errors import PycrictlError

if TYPE_CHECKING:
    from pycrictl.cri.calls.client import CriClient

ContainerState = Literal["created", "running", "exited", "unknown"]
CONTAINER_STATES: Final[dict[ContainerState, cri_pb2.ContainerState]] = {
    "created": cri_pb2.CONTAINER_CREATED,
    "running": cri_pb2.CONTAINER_RUNNING,
    "exited": cri_pb2.CONTAINER_EXITED,
    "unknown": cri_pb2.CONTAINER_UNKNOWN,
}

NO_NAMESPACE: Final = "unknown"
"""What tables show, and patterns match, for a container without a label of its namespace."""


class ContainerQuery(NamedTuple):
    """Which containers are wanted; names in the ``condition`` become IDs, patterns are searched."""

    condition: cri_pb2.ContainerFilter
    image: str = ""
    name: re.Pattern[str] | None = None
    namespace: re.Pattern[str] | None = None
    newest: int | None = None


def container_query(
    *,
    all_states: bool = False,
    container_id: str = "",
    image: str = "",
    labels: Mapping[str, str] | None = None,
    last: int = 0,
    latest: bool = False,
    name: str = "",
    namespace: str = "",
    pod: str = "",
    state: ContainerState | None = None,
) -> ContainerQuery:
    """Without a state running ones are meant, unless all or some of the newest are asked for."""
    condition = cri_pb2.ContainerFilter(id=container_id, pod_sandbox_id=pod, label_selector=labels)
    count = newest_count(latest=latest, last=last)
    if state is None and not all_states and count is None:
        state = "running"
    if state is not None:
        condition.state.state = CONTAINER_STATES[state]
    return ContainerQuery(
        condition,
        image=image,
        name=pattern(name, option="--name") if name else None,
        namespace=pattern(namespace, option="--namespace") if namespace else None,
        newest=count,
    )


def list_containers(
    client: CriClient, images: CriClient, query: ContainerQuery
) -> list[cri_pb2.Container]:
    """Return the containers of a query, the newest first.

    ``images`` is a client of the image service, which is asked only about ``query.image``.
    """
    select_by_id(client, query.condition)
    found = fetch.containers(client, query.condition)
    if not query.image:
        return select_containers(found, query)
    candidates = {container.image.image for container in found}
    ids = {reference: image.id for reference, image in find_images(images, [query.image])}
    wanted = ids.get(query.image)
    if wanted is None:
        return []
    known = find_images(images, sorted(candidates))
    return select_containers(
        found, query, images={reference for reference, image in known if image.id == wanted}
    )


def select_containers(
    containers: Iterable[cri_pb2.Container],
    query: ContainerQuery,
    *,
    images: Collection[str] | None = None,
) -> list[cri_pb2.Container]:
    """Select by what the runtime does not filter by; return the newest first.

    ``images`` are references, one of which must be the container's image; None for any.
    """
    found = [
        container
        for container in containers
        if (images is None or container.image.image in images)
        and (query.name is None or query.name.search(container.metadata.name))
        and (query.namespace is None or query.namespace.search(_namespace(container)))
    ]
    return newest_first(found, query.newest)


def first_tags(images: CriClient, containers: Iterable[cri_pb2.Container]) -> dict[str, str]:
    """Return the first tag of each image that has one, by the containers' reference to it."""
    references = dict.fromkeys(container.image.image for container in containers)
    found = find_images(images, references)
    return {reference: image.repo_tags[0] for reference, image in found if image.repo_tags}


def find_images(client: CriClient, references: Iterable[str]) -> list[tuple[str, cri_pb2.Image]]:
    """Return those of the references that the runtime has, with their images."""
    asked = [reference for reference in references if reference]
    requests = (
        (
            f"looking for image {quote_reference(reference)}",
            cri_pb2.ImageStatusRequest(image=cri_pb2.ImageSpec(image=reference)),
        )
        for reference in asked
    )
    found = []
    for reference, answer in zip(asked, call_each(client, "ImageStatus", requests), strict=True):
        if isinstance(answer, PycrictlError):
            raise answer
        if answer.HasField("image"):
            found.append((reference, answer.image))
    return found


def _namespace(container: cri_pb2.Container) -> str:
    return container.labels.get(NAMESPACE_LABEL, NO_NAMESPACE)


PodState = Literal["ready", "notready"]
POD_STATES: Final[dict[PodState, cri_pb2.PodSandboxState]] = {
    "ready": cri_pb2.SANDBOX_READY,
    "notready": cri_pb2.SANDBOX_NOTREADY,
}


class PodQuery(NamedTuple):
    condition: cri_pb2.PodSandboxFilter
    name: re.Pattern[str] | None = None
    namespace: re.Pattern[str] | None = None
    newest: int | None = None


def pod_query(
    *,
    pod_id: str = "",
    labels: Mapping[str, str] | None = None,
    last: int = 0,
    latest: bool = False,
    name: str = "",
    namespace: str = "",
    state: PodState | None = None,
) -> PodQuery:
    condition = cri_pb2.PodSandboxFilter(id=pod_id, label_selector=labels)
    if state is not None:
        condition.state.state = POD_STATES[state]
    return PodQuery(
        condition,
        name=pattern(name, option="--name") if name else None,
        namespace=pattern(namespace, option="--namespace") if namespace else None,
        newest=newest_count(latest=latest, last=last),
    )


def list_pods(client: CriClient, query: PodQuery) -> list[cri_pb2.PodSandbox]:
    select_by_id(client, query.condition)
    return select_pods(fetch.pods(client, query.condition), query)


def select_pods(pods: Iterable[cri_pb2.PodSandbox], query: PodQuery) -> list[cri_pb2.PodSandbox]:
    found = [
        pod
        for pod in pods
        if (query.name is None or query.name.search(pod.metadata.name))
        and (query.namespace is None or query.namespace.search(pod.metadata.namespace))
    ]
    return newest_first(found, query.newest)
