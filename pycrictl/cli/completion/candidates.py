"""Candidates from the runtime: IDs, names and paths."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from pycrictl._proto import cri_pb2
from pycrictl.base import config
from pycrictl.base.units import SHORT_ID_CHARS
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.calls.endpoints import open_client
from pycrictl.runtime.cri.lists import lookup

if TYPE_CHECKING:
    from pycrictl.copy.on_node import ContainerRoot

MOST: Final = 5000
"""The maximum number of candidates; a directory may have millions of names."""


Candidates = Iterator[tuple[str, str]]
"""Whole words and their descriptions; a word that ends in ``/`` or ``:`` can be continued."""


def read(
    source: Callable[[CriClient, str], Candidates], word: str, settings: config.Config
) -> list[tuple[str, str]]:
    """Return the candidates for the beginning of a word; ``source`` is a function below."""
    client = open_client(
        settings._replace(max_retries=0), "image" if source is images else "runtime"
    )
    return list(islice(source(client, word), MOST))


def containers(
    client: CriClient, word: str, *, state: cri_pb2.ContainerState | None = None
) -> Candidates:
    lists = lookup.Lookup(client)
    newest = {
        (container.metadata.name, container.pod_sandbox_id): container
        for container in lists.containers
    }
    wanted = [container for container in newest.values() if state in (None, container.state)]
    known = [(container.id, lists.full_name(container), _state(container)) for container in wanted]
    yield from _words(
        known, word, {lists.full_name(container): container.id for container in newest.values()}
    )


created_containers = partial(containers, state=cri_pb2.CONTAINER_CREATED)
running_containers = partial(containers, state=cri_pb2.CONTAINER_RUNNING)


def _state(container: cri_pb2.Container) -> str:
    return cri_pb2.ContainerState.Name(container.state).removeprefix("CONTAINER_").lower()


def pods(client: CriClient, word: str) -> Candidates:
    known = {}
    for pod in sorted(lookup.pods(client), key=lambda pod: pod.created_at):
        state = "ready" if pod.state == cri_pb2.SANDBOX_READY else "not ready"
        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        known[name] = (pod.id, name, state)
    yield from _words(list(known.values()), word, {name: pod[0] for name, pod in known.items()})


def logs(client: CriClient, word: str) -> Candidates:
    """Yield containers, then pods; a pod stands for all of its containers."""
    offered = dict(containers(client, word))
    yield from offered.items()
    yield from (pod for pod in pods(client, word) if pod[0] not in offered)


def _words(
    known: Sequence[tuple[str, str, str]], word: str, all_names: Mapping[str, str]
) -> Candidates:
    """Yield the shortest unambiguous names that begin with ``word``, then IDs that do.

    For an empty word, IDs are yielded only for objects without such a name. ``known`` has the ID,
    full name (NAMESPACE/POD/NAME) and state of each object, ``all_names`` the ID of every name.
    """
    counts = Counter(form for name in all_names for form in _forms(name))
    named = set()
    for whole, name, state in known:
        for form in _forms(name):
            if counts[form] == 1 and form.startswith(word):
                named.add(whole)
                owner = name.removesuffix(form).rstrip("/")
                about = ", ".join(filter(None, (state, owner and f"in {owner}")))
                yield form, f"{whole[:SHORT_ID_CHARS]}, {about}"
                break
    is_short = len(word) <= SHORT_ID_CHARS
    for whole, name, state in known:
        if whole.startswith(word) and (word or whole not in named):
            shown = whole[:SHORT_ID_CHARS] if is_short else whole
            yield shown, f"{name}, {state}"


def _forms(name: str) -> list[str]:
    """Return the ways to write NAMESPACE/POD/NAME, the shortest first."""
    parts = name.split("/")
    return ["/".join(parts[-count:]) for count in range(1, len(parts) + 1)]


def images(client: CriClient, word: str) -> Candidates:
    for image in lookup.images(client):
        digest = image.id.removeprefix("sha256:")
        short = digest[:SHORT_ID_CHARS]
        names = [name for name in image.repo_tags if name.startswith(word)]
        if "@" in word or not image.repo_tags:
            names += [name for name in image.repo_digests if name.startswith(word)]
        for name in names:
            yield name, short
        if word and image.id.startswith(word):
            yield image.id, ", ".join(image.repo_tags)
        elif word and digest.startswith(word):
            shown = short if len(word) <= len(short) else digest
            yield shown, ", ".join(image.repo_tags)


def container_paths(client: CriClient, word: str) -> Candidates:
    """Yield ``CONTAINER:PATH``, or ``CONTAINER:`` as long as there is no colon."""
    if word.startswith(("/", ".")):
        return
    reference, colon, path = word.partition(":")
    if not colon:
        for name, description in running_containers(client, word):
            yield f"{name}:", description
        return
    target = lookup.Lookup(client).target(reference, "container")
    if target.error is None:
        for shown in _paths(client, target.id, path):
            yield f"{reference}:{shown}", ""


def _paths(client: CriClient, container_id: str, path: str) -> Iterator[str]:
    """Yield the entries of a directory in a running container; directories end with a slash.

    Works only for root. Only directories are opened, through a root that is verified to be the
    container's.
    """
    from pycrictl.copy.on_node import ContainerRoot, locate  # noqa: PLC0415 - only for their paths
    from pycrictl.copy.tree.rootfs import Directory  # noqa: PLC0415 - the same

    if not path:
        yield "/"
    if not path.startswith("/"):
        return
    parent, _, beginning = path.rpartition("/")
    where = os.fsencode(f"{parent}/")
    with (
        ContainerRoot(partial(locate, client.call, container_id)) as root,
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
        pinned = root.find(path, follow=True)  # links are resolved as in the container
    except OSError:
        return False
    try:
        return stat.S_ISDIR(os.fstat(pinned).st_mode)
    finally:
        os.close(pinned)
