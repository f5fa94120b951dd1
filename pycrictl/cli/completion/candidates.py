"""What can stand where a word is typed, as the runtime knows it: IDs, names and paths.

All calls are single ones, which need no gRPC: its import would take much of the time that a
completion has.
"""

from __future__ import annotations

import os
import socket
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from pycrictl import config
from pycrictl._proto import cri_pb2
from pycrictl.cri.calls.client import CriClient
from pycrictl.cri.lists import fetch, lookup

if TYPE_CHECKING:
    from pycrictl.copy.tree.identity import ContainerRoot

MOST: Final = 5000
"""More candidates than anybody looks at; a directory may have millions of names."""

_TIMEOUT_S: Final = 10.0
"""Longer than any completion may take."""


class Candidate(NamedTuple):
    """A whole word and its description. One that ends in ``/`` or ``:`` can be continued."""

    word: str
    description: str = ""


def connect(settings: config.Config, service: str) -> CriClient:
    """Connect to the runtime or image service of a configuration.

    Raises:
        UsageError: the endpoint is not a unix socket.
        OSError: nothing answers.
    """
    endpoint = settings.image_endpoint if service == "image" else settings.runtime_endpoint
    if endpoint.origin != "default":
        paths = [config.socket_path(endpoint, f"{service}-endpoint")]
    else:
        paths = [default.removeprefix("unix://") for default in config.DEFAULT_ENDPOINTS]
    for path in paths:
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(path)
        except OSError:
            continue
        return CriClient(path, timeout_s=_TIMEOUT_S)
    raise ConnectionError


def find(kind: str, word: str, settings: config.Config) -> list[Candidate]:
    """Return what begins with ``word``, in the order to show it.

    Args:
        kind: one of KINDS; any other has no candidates.
        word: what is typed so far; may be empty.
        settings: names the endpoints.

    Raises:
        PycrictlError: the runtime cannot be asked.
        OSError: likewise.
    """
    if kind not in KINDS:
        return []
    client = connect(settings, "image" if kind == "image" else "runtime")
    found = KINDS[kind](client, word)
    return list(islice(filter(_is_plain, found), MOST))


def _is_plain(candidate: Candidate) -> bool:
    """Return whether it can be written on one line of a terminal as it is."""
    return candidate.word.isprintable()


def _containers(
    client: CriClient,
    word: str,
    *,
    state: cri_pb2.ContainerState | None = None,
    by_name: bool = False,
) -> Iterator[Candidate]:
    condition = cri_pb2.ContainerFilter()
    if state is not None:
        condition.state.state = state
    containers = fetch.containers(client, condition)
    if by_name:
        yield from _unique_names(containers, word)
        if not word and containers:
            return  # each would be there twice
    # Where names are taken as well, a name need not stand for its ID.
    ids = [(each.id, "" if by_name else each.metadata.name, _about(each)) for each in containers]
    yield from _ids(ids, word)


def _unique_names(containers: Sequence[cri_pb2.Container], word: str) -> Iterator[Candidate]:
    """Yield names that mean one container; several attempts of one pod's container are one."""
    owners = {(each.metadata.name, each.pod_sandbox_id): each for each in containers}
    counts = Counter(name for name, _ in owners)
    for (name, _), container in owners.items():
        if counts[name] == 1 and name.startswith(word):
            yield Candidate(name, _about(container))


def _about(container: cri_pb2.Container) -> str:
    state = cri_pb2.ContainerState.Name(container.state).removeprefix("CONTAINER_").lower()
    return f"{container.metadata.name}{_of_pod(container)}, {state}"


def _of_pod(container: cri_pb2.Container) -> str:
    labels = container.labels
    if not labels.get(lookup.POD_LABEL):
        return ""
    return f" of {labels.get(lookup.NAMESPACE_LABEL, '')}/{labels[lookup.POD_LABEL]}"


def _ids(found: Sequence[tuple[str, str, str]], word: str) -> Iterator[Candidate]:
    """Yield IDs that begin with ``word``; if there are none, the only one whose name does.

    Args:
        found: ID, name and description of each.
        word: what is typed.
    """
    matches = [each for each in found if each[0].startswith(word)]
    if not matches:
        named = [each for each in found if each[1].startswith(word)]
        matches = named if len(named) == 1 else []
    is_short = len(word) <= lookup.SHOWN_ID_CHARS
    for whole, _, description in matches:
        yield Candidate(whole[: lookup.SHOWN_ID_CHARS] if is_short else whole, description)


def _pods(client: CriClient, word: str, *, by_name: bool = False) -> Iterator[Candidate]:
    pods = fetch.pods(client)
    descriptions = {
        pod.id: f"{pod.metadata.namespace}/{pod.metadata.name}, "
        + ("ready" if pod.state == cri_pb2.SANDBOX_READY else "not ready")
        for pod in pods
    }
    if by_name:
        for pod in {(pod.metadata.namespace, pod.metadata.name): pod for pod in pods}.values():
            full = f"{pod.metadata.namespace}/{pod.metadata.name}"
            if full.startswith(word):
                yield Candidate(full, descriptions[pod.id])
            elif pod.metadata.name.startswith(word):
                yield Candidate(pod.metadata.name, descriptions[pod.id])
        if not word and pods:
            return
    yield from _ids(
        [(each.id, "" if by_name else each.metadata.name, descriptions[each.id]) for each in pods],
        word,
    )


def _images(client: CriClient, word: str) -> Iterator[Candidate]:
    for image in fetch.images(client):
        digest = image.id.removeprefix("sha256:")
        short = digest[: lookup.SHOWN_ID_CHARS]
        names = [name for name in image.repo_tags if name.startswith(word)]
        if "@" in word or not image.repo_tags:
            names += [name for name in image.repo_digests if name.startswith(word)]
        for name in names:
            yield Candidate(name, short)
        if word and image.id.startswith(word):
            yield Candidate(image.id, ", ".join(image.repo_tags))
        elif word and digest.startswith(word):
            shown = short if len(word) <= len(short) else digest
            yield Candidate(shown, ", ".join(image.repo_tags))


def _container_paths(client: CriClient, word: str) -> Iterator[Candidate]:
    """Yield ``CONTAINER:PATH``, or ``CONTAINER:`` as long as there is no colon."""
    if word.startswith(("/", ".")):
        return
    reference, colon, path = word.partition(":")
    pod, slash, name = reference.rpartition("/")
    pod_id = lookup.find_pod(client, pod).id if pod else ""
    if colon:
        container = lookup.find_container(client, name, pod_sandbox_id=pod_id)
        if container is not None:
            for shown in _paths(client, container.id, path):
                yield Candidate(f"{reference}:{shown}")
        return
    condition = cri_pb2.ContainerFilter(pod_sandbox_id=pod_id)
    condition.state.state = cri_pb2.CONTAINER_RUNNING
    containers = fetch.containers(client, condition)
    candidates = [*_unique_names(containers, name)]
    if name:
        candidates += _ids([(each.id, "", _about(each)) for each in containers], name)
    for candidate in candidates:
        yield Candidate(f"{pod}{slash}{candidate.word}:", candidate.description)


def _paths(client: CriClient, container_id: str, path: str) -> Iterator[str]:
    """Yield what is in a running container; directories end with a slash.

    Only root can look. Nothing is opened but directories, and those through the root that is proved
    to be the container's.
    """
    from pycrictl.copy.node.on_node import locate
    from pycrictl.copy.tree.identity import ContainerRoot
    from pycrictl.copy.tree.rootfs import Directory

    if not path:
        yield "/"
    if not path.startswith("/"):
        return
    parent, _, beginning = path.rpartition("/")
    where = os.fsencode(f"{parent}/")
    with (
        ContainerRoot(partial(locate, client, container_id)) as root,
        Directory(root.find(where, follow=True), where) as directory,
    ):
        for entry in islice(directory.scan(), MOST):
            is_hidden = entry.name.startswith(".") and not beginning
            if entry.name.startswith(beginning) and not is_hidden:
                inner = where + os.fsencode(entry.name)
                slash = "/" if _is_directory(root, entry, inner) else ""
                yield f"{parent}/{entry.name}{slash}"


def _is_directory(root: ContainerRoot, entry: os.DirEntry[str], path: bytes) -> bool:
    if not entry.is_symlink():
        return entry.is_dir(follow_symlinks=False)
    try:
        pinned = root.find(path, follow=True)  # a link means what the container sees there
    except OSError:
        return False
    try:
        return stat.S_ISDIR(os.fstat(pinned).st_mode)
    finally:
        os.close(pinned)


KINDS: Final[dict[str, Callable[[CriClient, str], Iterator[Candidate]]]] = {
    "container": partial(_containers, by_name=True),
    "container-id": _containers,
    "created-container-id": partial(_containers, state=cri_pb2.CONTAINER_CREATED),
    "running-container-id": partial(_containers, state=cri_pb2.CONTAINER_RUNNING),
    "container-path": _container_paths,
    "pod": partial(_pods, by_name=True),
    "pod-id": _pods,
    "image": _images,
}
"""What a runtime can be asked for, by the names of ``Completes`` in small letters."""
