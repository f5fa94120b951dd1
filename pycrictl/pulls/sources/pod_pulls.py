"""The running pulls of a pod, as reported by a proxy or shown by containerd."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pycrictl.pulls.messages import pulls_in_line
from pycrictl.pulls.reference import Match, match
from pycrictl.pulls.sources.failures import cause
from pycrictl.pulls.sources.node_watch import open_watcher
from pycrictl.pulls.sources.pull_names import ImageOwners
from pycrictl.pulls.state import PullState
from pycrictl.pulls.tracker import Tracker

if TYPE_CHECKING:
    from pycrictl.kube.node_pods import NodePods
    from pycrictl.runtime.cri.calls.client import CriClient

WATCH_S: Final = 2.0
"""How long pulls are watched; their rate is known after a second."""

_PAUSE_S: Final = 0.25


class Pulls(NamedTuple):
    """What is known of the pulls for a pod.

    Attributes:
        own: the pod's, by image.
        node: the node's, by image: another pod's pull brings an image here, too.
        failed: the errors of its last pulls, by image.
    """

    own: Mapping[str, PullState] = {}
    node: Mapping[str, PullState] = {}
    failed: Mapping[str, str] = {}


def from_proxy(
    status: Mapping[str, Any], owner: str, seen: Mapping[str, PullState] | None = None
) -> Pulls:
    """Return the pulls for the pod ``owner`` in a proxy's status, beside those seen elsewhere."""
    own: dict[str, PullState] = {}
    node: dict[str, PullState] = {}
    for pull in pulls_in_line(status):
        if pull.pod == owner:
            own.setdefault(pull.image, pull)
        node.setdefault(pull.image, pull)
    failed = {
        failure["image"]: cause(failure["error"])
        for failure in status.get("failures", ())
        if failure["pod"] == owner
    }
    return Pulls(own, {**node, **(seen or {})}, failed)


class ContainerdPulls:
    """The running pulls of a runtime, watched from outside.

    Attributes:
        is_measured: all rates were known at the last poll.
    """

    def __init__(self, client: CriClient, pods: NodePods | None) -> None:
        owners = ImageOwners(pods.pods) if pods is not None else None
        self._watcher = open_watcher(client, owners)
        self._tracker = Tracker()
        self.is_measured = False

    def poll(self, references: Sequence[str]) -> dict[str, PullState]:
        """Return the pulls by the reference that each is for, or else by name."""
        now = time.monotonic()
        active = self._watcher.poll(self._tracker, now).active
        view = self._tracker.view(now, time.time())
        shown = [view.pulls.get(pull.image, pull) for pull in active]
        self.is_measured = all(pull.sums.rate for pull in shown)
        by_reference: dict[str, PullState] = {}
        for pull in shown:
            by_reference.setdefault(_reference(pull, references), pull)
        return by_reference


def _reference(pull: PullState, references: Sequence[str]) -> str:
    if not pull.image:
        return "an image that is not known yet"
    matches = {reference: match(reference, pull) for reference in references}
    sure = [reference for reference in references if matches[reference] is Match.YES]
    if not sure and not pull.candidates:
        sure = [reference for reference in references if matches[reference] is Match.MAYBE]
    return sure[0] if sure else pull.image


def watch_briefly(
    client: CriClient, references: Sequence[str], pods: NodePods | None
) -> dict[str, PullState]:
    """Return the running pulls of containerd, watched until their rates are known."""
    pulls = ContainerdPulls(client, pods)
    end_at = time.monotonic() + WATCH_S
    while True:
        running = pulls.poll(references)
        if pulls.is_measured or time.monotonic() >= end_at:
            return running
        time.sleep(_PAUSE_S)
