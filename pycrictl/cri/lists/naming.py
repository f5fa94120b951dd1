"""What words stand for among things with IDs and names, and which names are like a word. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Final, TypeVar

from pycrictl._proto import cri_pb2
from pycrictl.units import quote

T = TypeVar("T", cri_pb2.Container, cri_pb2.PodSandbox)

_SURE_CHARS: Final = 12
"""A word of so many characters that begins an ID is meant as one; shorter ones may be names."""


def match(things: Sequence[T], text: str, named: Callable[[], list[T]]) -> list[T]:
    """Return what a word stands for: an exact ID, the only one that begins so, then names.

    A short word that is both, as ``db`` may be, stands for both: nobody shall stop the wrong one.
    """
    if exact := [each for each in things if each.id == text]:
        return exact
    begun = [each for each in things if each.id.startswith(text)]
    if len(begun) == 1 and len(text) >= _SURE_CHARS:
        return begun
    found = named()
    if len(begun) == 1:
        return begun + [each for each in found if each.id != begun[0].id]
    return found or begun


def pods_named(pods: Iterable[cri_pb2.PodSandbox], text: str) -> list[cri_pb2.PodSandbox]:
    """Return the newest sandbox of each pod NAME or NAMESPACE/NAME."""
    namespace, _, name = text.rpartition("/")
    newest: dict[str, cri_pb2.PodSandbox] = {}
    for pod in sorted(pods, key=lambda pod: pod.created_at):
        if pod.metadata.name == name and namespace in ("", pod.metadata.namespace):
            newest[pod_key(pod)] = pod
    return preferred(
        list(newest.values()), pod_name, lambda pod: pod.state == cri_pb2.SANDBOX_READY
    )


def preferred(found: list[T], name: Callable[[T], str], is_alive: Callable[[T], bool]) -> list[T]:
    """Return what is alive of several that no name can tell apart; all, if that is not one."""
    alive = [each for each in found if is_alive(each)]
    return alive if len(alive) == 1 and len({*map(name, found)}) == 1 else found


def pod_key(pod: cri_pb2.PodSandbox) -> str:
    """Return what all sandboxes of one pod have in common: the pod's UID."""
    return pod.metadata.uid or pod.id


def pod_name(pod: cri_pb2.PodSandbox) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def nearest(text: str, full_names: Iterable[str]) -> str:
    """Return the names that are most like a word, in its form, joined by "or"."""
    parts = text.count("/") + 1
    known = sorted({word for name in full_names for word in _forms(name, parts)})
    return " or ".join(quote(word) for word in get_close_matches(text, known, n=3))


def _forms(name: str, parts: int) -> Iterator[str]:
    words = name.split("/")
    for start in range(len(words)):
        if len(words[start : start + parts]) == parts:
            yield "/".join(words[start : start + parts])
