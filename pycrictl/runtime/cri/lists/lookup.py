"""Lists from a runtime, and lookup of pods and containers in them by the words that users type.

A list is streamed in parts where that is supported, which keeps each part below the limit on the
size of a message. A runtime without streams answers ``Unimplemented`` at once; the list is then
requested as one message.

A word is an ID, its prefix, or a name. Some runtimes find a container by a prefix of its ID, none
by its name. Words are resolved to IDs only here, in this order: the exact ID, a unique prefix of an
ID, names. Write a container as NAME, POD/NAME, NAMESPACE/POD/NAME, or as its pod if that has no
other container; write a pod as NAME or NAMESPACE/NAME. A whole ID is not checked here: the call
that uses it fails if it does not exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar

from google.protobuf.message import Message

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import NotFound, PycrictlError, Unimplemented, UsageError
from pycrictl.base.units import SHORT_ID_CHARS, quote
from pycrictl.runtime.cri.calls.client import CriClient, method

T = TypeVar("T", cri_pb2.Container, cri_pb2.PodSandbox)
M = TypeVar("M", bound="Message")
Kind = Literal["container", "pod"]

LISTED_MATCHES: Final = 10

POD_LABEL: Final = "io.kubernetes.pod.name"
NAMESPACE_LABEL: Final = "io.kubernetes.pod.namespace"
"""Labels in which the kubelet stores the pod of a container."""

CONTAINERS_HINT: Final = "'pycrictl ps -a' lists the containers of the node"
PODS_HINT: Final = "'pycrictl pods' lists the pods of the node"
IMAGES_HINT: Final = "'pycrictl images' lists the images of the node"

WHOLE_ID: Final = r"[0-9a-f]{64}"

_SURE_CHARS: Final = 12
"""A unique ID prefix of at least this length is not matched as a name as well."""


def containers(
    client: CriClient, condition: cri_pb2.ContainerFilter | None = None
) -> list[cri_pb2.Container]:
    condition = condition or cri_pb2.ContainerFilter()
    return whole(client, "StreamContainers", "ListContainers", filter=condition)


def pods(
    client: CriClient, condition: cri_pb2.PodSandboxFilter | None = None
) -> list[cri_pb2.PodSandbox]:
    condition = condition or cri_pb2.PodSandboxFilter()
    return whole(client, "StreamPodSandboxes", "ListPodSandbox", filter=condition)


def images(client: CriClient) -> list[cri_pb2.Image]:
    """Return all images, unfiltered: runtimes ignore the filter, or compare whole references."""
    condition = cri_pb2.ImageFilter(image=cri_pb2.ImageSpec())
    return whole(client, "StreamImages", "ListImages", filter=condition)


def image(client: CriClient, name: str, action: str) -> cri_pb2.Image | None:
    """Return the image with this name or ID, None if there is none."""
    request = cri_pb2.ImageStatusRequest(image=cri_pb2.ImageSpec(image=name))
    answer = client.call("ImageStatus", request, action=action)
    return answer.image if answer.HasField("image") else None


def image_folder(client: CriClient) -> Path | None:
    """Return the folder in which the runtime keeps images (CRI ``ImageFsInfo``), if any."""
    filesystems = client.call("ImageFsInfo", cri_pb2.ImageFsInfoRequest()).image_filesystems
    return Path(filesystems[0].fs_id.mountpoint) if filesystems else None


def whole(client: CriClient, stream: str, unary: str, **fields: Any) -> list[Any]:
    """Return a whole list, as a stream if the runtime supports that."""
    # An unsupported call takes half a millisecond: not worth caching that it is unsupported.
    try:
        parts = client.stream(stream, method(stream).request_type(**fields), action=unary)
        return [item for part in parts for item in _items(part)]
    except Unimplemented:
        return list(_items(client.call(unary, method(unary).request_type(**fields))))


def _items(answer: Any) -> Iterable[Any]:
    """Return the elements in an answer, whose only field is the list."""
    items: Iterable[Any] = getattr(answer, answer.DESCRIPTOR.fields[0].name)
    return items


# Words


class ObjectRef(NamedTuple):
    """The object that a word refers to; ``id`` is the word itself if it was not resolved."""

    text: str
    id: str
    name: str = ""
    error: PycrictlError | None = None

    @property
    def shown(self) -> str:
        """The word as errors show it, with the beginning of the ID unless the word is the ID."""
        beginning = "" if self.id == self.text else f" ({self.id[:SHORT_ID_CHARS]})"
        return f"{quote(self.text)}{beginning}"


class Lookup:
    """The pods and containers of a runtime, found by ID, prefix or name.

    Each list is fetched once, on first use.
    """

    def __init__(self, client: CriClient) -> None:
        self._client = client

    @cached_property
    def pods(self) -> list[cri_pb2.PodSandbox]:
        return pods(self._client)

    @cached_property
    def containers(self) -> list[cri_pb2.Container]:
        return containers(self._client)

    @cached_property
    def _pods_by_id(self) -> dict[str, cri_pb2.PodSandbox]:
        try:
            return {pod.id: pod for pod in self.pods}
        except Unimplemented:
            return {}

    def find_pod(self, text: str) -> cri_pb2.PodSandbox:
        """Return the pod sandbox that a word refers to, the newest if a pod has several.

        UsageError is raised if several pods match.
        """
        matches = self._match_pods(text)
        if not matches:
            raise NotFound(f"no pod {quote(text)}", hint=PODS_HINT)
        return self._only("pod", text, matches)

    def find_container(self, text: str) -> cri_pb2.Container:
        """Return the container that a word refers to, the newest of several attempts.

        Exited containers of a pod count only if all have exited. Errors as ``find_pod``.
        """
        matches = self._match_containers(text)
        if not matches:
            raise self._no_container(text)
        return self._only("container", text, matches)

    def resolve(self, text: str, kind: Kind) -> ObjectRef:
        target = self.target(text, kind)
        if target.error is not None:
            raise target.error
        return target

    def target(self, text: str, kind: Kind) -> ObjectRef:
        """Resolve a word; a whole ID, or any word if the runtime has no lists, stays as it is."""
        if re.fullmatch(WHOLE_ID, text):
            return ObjectRef(text, text)
        try:
            matched = self.find_pod(text) if kind == "pod" else self.find_container(text)
            name = "" if matched.id.startswith(text) else self._name(matched)
            return ObjectRef(text, matched.id, name)
        except Unimplemented:
            return ObjectRef(text, text)
        except (NotFound, UsageError) as error:
            return ObjectRef(text, text, error=error)

    def selected(self, text: str, kind: Kind) -> str:
        """Return the ID that a word refers to, the word itself if nothing matches."""
        target = self.target(text, kind) if text else ObjectRef(text, text)
        if target.error is not None and not isinstance(target.error, NotFound):
            raise target.error
        return target.id

    def full_name(self, container: cri_pb2.Container) -> str:
        """Return NAMESPACE/POD/NAME, as far as kubelet's labels or the list of pods allow."""
        owner = container.labels.get(POD_LABEL, "")
        if owner:
            owner = f"{container.labels.get(NAMESPACE_LABEL, '')}/{owner}"
        elif (pod := self._pods_by_id.get(container.pod_sandbox_id)) is not None:
            owner = pod_name(pod)
        return f"{owner}/{container.metadata.name}" if owner else container.metadata.name

    def named_pod(self, text: str) -> cri_pb2.PodSandbox | None:
        known = self._pods_by_id.values() if "/" in text else ()
        return next((pod for pod in known if pod_name(pod) == text), None)

    def containers_of(self, pod: cri_pb2.PodSandbox) -> list[cri_pb2.Container]:
        """Return the newest attempt of each container of a pod, over all its sandboxes."""
        known = self._pods_by_id.values()
        sandboxes = {item.id for item in known if pod_key(item) == pod_key(pod)}
        return self._newest(item for item in self.containers if item.pod_sandbox_id in sandboxes)

    def _match_pods(self, text: str) -> list[cri_pb2.PodSandbox]:
        return match(self.pods, text, lambda: pods_named(self.pods, text))

    def _match_containers(self, text: str) -> list[cri_pb2.Container]:
        return match(self.containers, text, lambda: self._containers_named(text))

    def _containers_named(self, text: str) -> list[cri_pb2.Container]:
        owner, slash, name = text.rpartition("/")
        matches = [container for container in self.containers if container.metadata.name == name]
        if slash:
            owners = {pod_key(pod) for pod in self._match_pods(owner)}
            matches = [container for container in matches if self._key(container)[0] in owners]
        matches = self._newest(matches)
        for pod in pods_named(self._pods_by_id.values(), text):
            matches += [
                container for container in self._of_pod(pod, name) if container not in matches
            ]
        return preferred(
            matches, self.full_name, lambda container: container.state == cri_pb2.CONTAINER_RUNNING
        )

    def _of_pod(self, pod: cri_pb2.PodSandbox, name: str) -> list[cri_pb2.Container]:
        containers = self.containers_of(pod)
        of_name = [container for container in containers if container.metadata.name == name]
        lasting = [
            container for container in containers if container.state != cri_pb2.CONTAINER_EXITED
        ]
        return of_name or lasting or containers

    def _newest(self, containers: Iterable[cri_pb2.Container]) -> list[cri_pb2.Container]:
        newest: dict[tuple[str, str], cri_pb2.Container] = {}
        for container in sorted(containers, key=lambda container: container.created_at):
            newest[self._key(container)] = container
        return list(newest.values())

    def _key(self, container: cri_pb2.Container) -> tuple[str, str]:
        pod = self._pods_by_id.get(container.pod_sandbox_id)
        owner = container.pod_sandbox_id if pod is None else pod_key(pod)
        return owner, container.metadata.name

    def _name(self, item: cri_pb2.Container | cri_pb2.PodSandbox) -> str:
        return pod_name(item) if isinstance(item, cri_pb2.PodSandbox) else self.full_name(item)

    def _only(self, kind: Kind, text: str, matches: list[T]) -> T:
        if len(matches) == 1:
            return matches[0]
        words: list[str] = [self._name(item) for item in matches]
        if len({*words}) < len(words):
            pairs = zip(matches, words, strict=True)
            words = [f"{item.id[:SHORT_ID_CHARS]} ({word})" for item, word in pairs]
        more = f" and {len(matches) - LISTED_MATCHES} more" if len(matches) > LISTED_MATCHES else ""
        listed = ", ".join(words[:LISTED_MATCHES])
        raise UsageError(f"{quote(text)} matches {len(matches)} {kind}s: {listed}{more}")

    def _no_container(self, text: str) -> NotFound:
        owner = text.rpartition("/")[0]
        for pod in [*self._match_pods(text), *(self._match_pods(owner) if owner else ())]:
            names = ", ".join(container.metadata.name for container in self.containers_of(pod))
            there = f"its containers are {names}" if names else "it has no containers"
            hint = f"there is a pod {pod_name(pod)}: {there}"
            return NotFound(f"no container {quote(text)}", hint=hint)
        return NotFound(f"no container {quote(text)}", hint=CONTAINERS_HINT)


def find_in_pod(client: CriClient, pod_sandbox_id: str, text: str) -> cri_pb2.Container | None:
    """Return the newest container of a sandbox with this name or ID prefix, if any."""
    condition = cri_pb2.ContainerFilter(pod_sandbox_id=pod_sandbox_id)
    matches = [
        container
        for container in containers(client, condition)
        if container.metadata.name == text or container.id.startswith(text)
    ]
    return max(matches, key=lambda container: container.created_at, default=None)


def targets(
    client: CriClient, texts: Iterable[str], kind: Kind, *, as_typed: bool = False
) -> list[ObjectRef]:
    """Return the object that each word refers to; two words for one object are one target.

    With ``as_typed``, each word is a target; words without a match go to the runtime unchanged.
    """
    lookup = Lookup(client)
    refs = [lookup.target(text, kind) for text in texts]
    if as_typed:
        return [
            ref._replace(error=None) if isinstance(ref.error, NotFound) else ref for ref in refs
        ]
    distinct: dict[tuple[str, bool], ObjectRef] = {}
    for ref in refs:
        distinct.setdefault((ref.id, ref.error is None), ref)
    return list(distinct.values())


def select_by_id(client: CriClient, condition: M) -> M:
    """Return a list's condition with its words (``id``, ``pod_sandbox_id``) replaced by IDs.

    A word without a match stays: the list is then empty, as in crictl.
    """
    resolved: Any = type(condition)()
    resolved.CopyFrom(condition)
    has_pod = "pod_sandbox_id" in condition.DESCRIPTOR.fields_by_name
    lookup = Lookup(client)
    resolved.id = lookup.selected(resolved.id, "container" if has_pod else "pod")
    if has_pod:
        resolved.pod_sandbox_id = lookup.selected(resolved.pod_sandbox_id, "pod")
    selected: M = resolved
    return selected


def match(objects: Sequence[T], text: str, named: Callable[[], list[T]]) -> list[T]:
    """Return the matches of a word: an exact ID, a unique prefix of an ID, or names.

    A short word such as ``db`` may match both as prefix and as name; both are returned, so the
    wrong one is not stopped by mistake.
    """
    if exact := [item for item in objects if item.id == text]:
        return exact
    begun = [item for item in objects if item.id.startswith(text)]
    if len(begun) == 1 and len(text) >= _SURE_CHARS:
        return begun
    by_name = named()
    if len(begun) == 1:
        return begun + [item for item in by_name if item.id != begun[0].id]
    return by_name or begun


def pods_named(pods: Iterable[cri_pb2.PodSandbox], text: str) -> list[cri_pb2.PodSandbox]:
    namespace, _, name = text.rpartition("/")
    newest: dict[str, cri_pb2.PodSandbox] = {}
    for pod in sorted(pods, key=lambda pod: pod.created_at):
        if pod.metadata.name == name and namespace in ("", pod.metadata.namespace):
            newest[pod_key(pod)] = pod
    return preferred(
        list(newest.values()), pod_name, lambda pod: pod.state == cri_pb2.SANDBOX_READY
    )


def preferred(matches: list[T], name: Callable[[T], str], is_alive: Callable[[T], bool]) -> list[T]:
    """Return the only live one of several objects with the same name, otherwise all of them."""
    alive = [item for item in matches if is_alive(item)]
    return alive if len(alive) == 1 and len({*map(name, matches)}) == 1 else matches


def pod_key(pod: cri_pb2.PodSandbox) -> str:
    """Return the key that all sandboxes of one pod share: the pod's UID."""
    return pod.metadata.uid or pod.id


def pod_name(pod: cri_pb2.PodSandbox) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
