"""The pulls in lists and watches of ImagePull objects. Pure.

A pull has its ``node`` where pulls of several nodes are shown, since each node pulls the same
bytes. On one node, several pods that need one image share its pull, which is named after the first
of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from pycrictl.base.foreign import count, mapping, mappings, parsed, text, texts
from pycrictl.pulls.messages import pull_in_status
from pycrictl.pulls.state import Phase, PullState

_PHASES: Final = {
    "Queued": Phase.WAITING,
    "Waiting": Phase.WAITING,
    "Pulling": Phase.DOWNLOADING,
    "Extracting": Phase.EXTRACTING,
    "Succeeded": Phase.DONE,
    "Failed": Phase.FAILED,
    "BackOff": Phase.FAILED,
}


class Wanted(NamedTuple):
    """The pulls to show; an empty field matches all.

    ``is_of_one_pod``: pulls need not name their pod, and images that are present are shown, too.
    """

    namespace: str = ""
    node: str = ""
    container: str = ""
    has_pod: Callable[[str, str], bool] = lambda namespace, name: True
    is_of_one_pod: bool = False


class PullObject(NamedTuple):
    """The required parts of an ImagePull object.

    Attributes:
        pull: without what its status says; its pod is the first of those that share the pull.
        node: the node that pulls, empty before the pod has one.
        namespace, name: of the object's pod.
        has_begun: there is a pull, not only a pod that waits for one.
    """

    pull: PullState
    node: str
    namespace: str
    name: str
    phase: Phase
    has_begun: bool

    @property
    def is_over(self) -> bool:
        return self.phase in (Phase.DONE, Phase.FAILED)

    def shares(self, other: PullObject) -> bool:
        return (self.pull.image, self.node) == (other.pull.image, other.node)


class PullObjects:
    """Reads lists and watch events, and tracks which pulls are under way."""

    def __init__(self, wanted: Wanted) -> None:
        self.version = ""
        self.silent: dict[str, str] = {}
        self.lost: list[PullObject] = []
        self._wanted = wanted
        self._objects: dict[str, PullObject] = {}

    @property
    def is_idle(self) -> bool:
        return all(pull.is_over for pull in self._objects.values())

    @property
    def has_begun(self) -> bool:
        """Whether a wanted pull is under way; pods may wait for others that may never begin."""
        return any(pull.has_begun and not pull.is_over for pull in self._objects.values())

    def receive_list(self, body: bytes) -> list[PullState]:
        """Process a list; objects that are missing from it no longer exist."""
        document = parsed(body)
        if document.get("kind") != "ImagePullList":
            raise ValueError("not an ImagePullList")
        before, self._objects = self._objects, {}
        self.silent.clear()
        pulls: list[PullState] = []
        for item in mappings(document.get("items")):
            pulls += self._apply(item, before)
        for uid in before.keys() - self._objects.keys():
            self._lose(before[uid])
        self._take_version(document)
        return pulls

    def receive_event(self, event: Mapping[str, Any]) -> list[PullState]:
        """Process an event of a watch; unknown kinds are ignored."""
        kind, document = event.get("type"), mapping(event.get("object"))
        self._take_version(document)
        if kind in ("ADDED", "MODIFIED"):
            return list(self._apply(document, self._objects))
        uid = text(mapping(document.get("metadata")).get("uid"))
        if kind == "DELETED" and (pull := self._objects.pop(uid, None)) is not None:
            self._lose(pull)
        return []

    def _take_version(self, document: dict[str, Any]) -> None:
        self.version = text(mapping(document.get("metadata")).get("resourceVersion"))

    def _apply(
        self, document: dict[str, Any], before: dict[str, PullObject]
    ) -> Iterator[PullState]:
        metadata, spec, status = (
            mapping(document.get(key)) for key in ("metadata", "spec", "status")
        )
        namespace, node = text(metadata.get("namespace")), text(spec.get("nodeName"))
        pod, image = text(spec.get("podName")), text(spec.get("image"))
        if not self._is_wanted(namespace, node, pod, spec):
            return
        uid, error = text(metadata.get("uid")), text(status.get("error"))
        old = before.get(uid)
        if status.get("unknown") is True:
            self.silent[node] = error
            if old is not None:  # its agent may come back
                self._objects[uid] = old
            return
        stands = text(status.get("phase"))
        phase = _PHASES.get(stands, Phase.WAITING)
        is_of_one_pod = self._wanted.is_of_one_pod
        shown_node = "" if self._wanted.node or is_of_one_pod else node
        pods = () if is_of_one_pod else (f"{namespace}/{pod}",)
        pull = PullState(image=image, node=shown_node, pods=pods)
        shown = PullObject(pull, node, namespace, pod, phase, stands != "Waiting")
        others = [old, *self._objects.values()]
        if first := next((other for other in others if other and other.shares(shown)), None):
            pull = replace(pull, pods=first.pull.pods)
            shown = shown._replace(pull=pull)
        self._objects[uid] = shown
        if phase is Phase.DONE and old is not None and old.phase is phase:
            return  # that has been said; a list repeats it
        if stands == "Succeeded":
            is_old = not self.version  # it ended before the watch began
            if is_old and not is_of_one_pod:
                return
            if is_old or not (count(status.get("totalBytes")) or status.get("startTime")):
                phase, status = Phase.PRESENT, {}
        if phase is Phase.FAILED:
            error = error or text(status.get("kubeletReason")) or "the pull failed"
        yield pull_in_status(status, replace(pull, error=error), phase)

    def _is_wanted(self, namespace: str, node: str, pod: str, spec: dict[str, Any]) -> bool:
        wanted = self._wanted
        return (
            wanted.namespace in ("", namespace)
            and wanted.node in ("", node)
            and (not wanted.container or wanted.container in texts(spec.get("containers")))
            and wanted.has_pod(namespace, pod)
        )

    def _lose(self, pull: PullObject) -> None:
        if not pull.is_over and not any(other.shares(pull) for other in self._objects.values()):
            self.lost.append(pull)
