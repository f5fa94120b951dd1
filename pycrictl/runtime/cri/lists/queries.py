"""Lists of containers and pods, with filters beyond those of the CRI applied here."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import Unimplemented, UsageError
from pycrictl.base.units import quote
from pycrictl.runtime.cri.calls.client import CriClient, for_each
from pycrictl.runtime.cri.calls.redact import quote_reference
from pycrictl.runtime.cri.lists import lookup
from pycrictl.runtime.cri.lists.lookup import NAMESPACE_LABEL, POD_LABEL, select_by_id

F = TypeVar("F", cri_pb2.ContainerFilter, cri_pb2.PodSandboxFilter)
T = TypeVar("T", cri_pb2.Container, cri_pb2.PodSandbox)


def newest_count(*, latest: bool, last: int) -> int | None:
    """Return how many of the newest to list, None for all; ``last`` overrides ``latest``."""
    if last > 0:
        return last
    return 1 if latest else None


def newest_first(items: Iterable[T], count: int | None = None) -> list[T]:
    return sorted(items, key=lambda item: item.created_at, reverse=True)[:count]


def pattern(text: str, *, option: str) -> re.Pattern[str]:
    """Compile the regular expression by which an option filters names.

    The syntax is Python's, with ASCII classes as in crictl. Expressions with different meanings in
    the two syntaxes, such as ``[[:alpha:]]``, are rejected.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        try:
            return re.compile(text, re.ASCII)
        except FutureWarning:
            reason = "write [a-z] in place of classes such as [[:lower:]]"
        except (re.error, OverflowError, RecursionError) as exc:
            reason = str(exc)
    raise UsageError(f"{quote(text)} for {option} is not a valid regular expression: {reason}")


ContainerState = Literal["created", "running", "exited", "unknown"]
CONTAINER_STATES: Final[dict[ContainerState, cri_pb2.ContainerState]] = {
    "created": cri_pb2.CONTAINER_CREATED,
    "running": cri_pb2.CONTAINER_RUNNING,
    "exited": cri_pb2.CONTAINER_EXITED,
    "unknown": cri_pb2.CONTAINER_UNKNOWN,
}

NO_NAMESPACE: Final = "unknown"
"""The namespace in tables, and for patterns, of a container whose namespace is not known."""


@dataclass(frozen=True, slots=True)
class Query(Generic[F]):
    """A selection; names in ``condition`` become IDs, patterns may match anywhere in a name."""

    condition: F
    name: re.Pattern[str]
    namespace: re.Pattern[str]
    newest: int | None
    image: str = ""

    def select(self, items: Iterable[T], namespace: Callable[[T], str]) -> list[T]:
        matching = [
            item
            for item in items
            if self.name.search(item.metadata.name) and self.namespace.search(namespace(item))
        ]
        return newest_first(matching, self.newest)


def _patterns(name: str, namespace: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    return pattern(name, option="--name"), pattern(namespace, option="--namespace")


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
) -> Query[cri_pb2.ContainerFilter]:
    """Return a query; by default for running containers, unless all or the newest are requested."""
    condition = cri_pb2.ContainerFilter(id=container_id, pod_sandbox_id=pod, label_selector=labels)
    count = newest_count(latest=latest, last=last)
    if state is None and not all_states and count is None:
        state = "running"
    if state is not None:
        condition.state.state = CONTAINER_STATES[state]
    return Query(condition, *_patterns(name, namespace), count, image)


def list_containers(
    client: CriClient,
    images: CriClient,
    query: Query[cri_pb2.ContainerFilter],
    *,
    labels_only: bool = False,
) -> list[cri_pb2.Container]:
    """Return the containers of a query, the newest first.

    ``images`` is a client of the image service, used only to resolve ``query.image``. The namespace
    is taken from the labels; if they lack it, from the pod sandbox, unless ``labels_only``.
    """
    containers = lookup.containers(client, select_by_id(client, query.condition))
    if query.image:
        containers = _of_image(images, containers, query.image)
    pods = {} if labels_only or not query.namespace.pattern else pods_of(client, containers)

    def namespace(container: cri_pb2.Container) -> str:
        pod = pods.get(container.pod_sandbox_id)
        return container.labels.get(NAMESPACE_LABEL, pod.namespace if pod else NO_NAMESPACE)

    return query.select(containers, namespace)


def pods_of(
    client: CriClient, containers: Iterable[cri_pb2.Container]
) -> dict[str, cri_pb2.PodSandboxMetadata]:
    """Return the pods by ID; none if the labels of every container already name its pod."""
    labels = (POD_LABEL, NAMESPACE_LABEL)
    if all(label in container.labels for container in containers for label in labels):
        return {}
    with suppress(Unimplemented):
        return {pod.id: pod.metadata for pod in lookup.pods(client)}
    return {}


def _of_image(
    images: CriClient, containers: Sequence[cri_pb2.Container], image: str
) -> list[cri_pb2.Container]:
    ids = {reference: image_found.id for reference, image_found in find_images(images, [image])}
    if image not in ids:
        return []
    references = sorted({container.image.image for container in containers})
    known = {
        name
        for name, image_found in find_images(images, references)
        if image_found.id == ids[image]
    }
    return [container for container in containers if container.image.image in known]


def first_tags(images: CriClient, containers: Iterable[cri_pb2.Container]) -> dict[str, str]:
    """Return the first tag of each image that has one, by the containers' reference to it."""
    references = dict.fromkeys(container.image.image for container in containers)
    matches = find_images(images, references)
    return {reference: image.repo_tags[0] for reference, image in matches if image.repo_tags}


def find_images(client: CriClient, references: Iterable[str]) -> list[tuple[str, cri_pb2.Image]]:
    def find(client: CriClient, reference: str) -> cri_pb2.Image | None:
        return lookup.image(client, reference, f"looking for image {quote_reference(reference)}")

    asked = [reference for reference in references if reference]
    matches = zip(asked, for_each(client, find, asked), strict=True)
    return [(reference, image) for reference, image in matches if image is not None]


PodState = Literal["ready", "notready"]
POD_STATES: Final[dict[PodState, cri_pb2.PodSandboxState]] = {
    "ready": cri_pb2.SANDBOX_READY,
    "notready": cri_pb2.SANDBOX_NOTREADY,
}


def pod_query(
    *,
    pod_id: str = "",
    labels: Mapping[str, str] | None = None,
    last: int = 0,
    latest: bool = False,
    name: str = "",
    namespace: str = "",
    state: PodState | None = None,
) -> Query[cri_pb2.PodSandboxFilter]:
    condition = cri_pb2.PodSandboxFilter(id=pod_id, label_selector=labels)
    if state is not None:
        condition.state.state = POD_STATES[state]
    count = newest_count(latest=latest, last=last)
    return Query(condition, *_patterns(name, namespace), count)


def list_pods(
    client: CriClient, query: Query[cri_pb2.PodSandboxFilter]
) -> list[cri_pb2.PodSandbox]:
    pods = lookup.pods(client, select_by_id(client, query.condition))
    return query.select(pods, lambda pod: pod.metadata.namespace)
