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
    """Pulls by image: the pod's own, those of unknown and of other pods; the errors of its last."""

    own: Mapping[str, PullState] = {}
    stray: Mapping[str, PullState] = {}
    others: Mapping[str, PullState] = {}
    failed: Mapping[str, str] = {}

    def joined(self, other: Pulls) -> Pulls:
        return Pulls(
            {**self.own, **other.own},
            {**self.stray, **other.stray},
            {**self.others, **other.others},
            {**self.failed, **other.failed},
        )


def from_proxy(status: Mapping[str, Any], owner: str) -> Pulls:
    own: dict[str, PullState] = {}
    stray: dict[str, PullState] = {}
    others: dict[str, PullState] = {}
    for pull in pulls_in_line(status):
        whose = own if pull.pod == owner else others if pull.pods else stray
        whose.setdefault(pull.image, pull)
    failed = {
        one["image"]: cause(one["error"])
        for one in status.get("failures", ())
        if one["pod"] == owner
    }
    return Pulls(own, stray, others, failed)


class ContainerdPulls:
    def __init__(self, client: CriClient, pods: NodePods | None) -> None:
        owners = ImageOwners(pods.pods) if pods is not None else None
        self._watcher = open_watcher(client, owners)
        self._tracker = Tracker()
        self.is_measured = False

    def poll(self, references: Sequence[str]) -> Pulls:
        """Return the current pulls; set ``is_measured`` to whether all their rates are known."""
        now = time.monotonic()
        active = self._watcher.poll(self._tracker, now).active
        view = self._tracker.view(now, time.time())
        shown = [view.pulls.get(pull.image, pull) for pull in active]
        self.is_measured = all(pull.sums.rate for pull in shown)
        own: dict[str, PullState] = {}
        stray: dict[str, PullState] = {}
        for pull in shown:
            name = pull.image
            matches = {one: match(one, pull) for one in references if name}
            sure = [one for one, found in matches.items() if found is Match.YES]
            likely = [one for one, found in matches.items() if found is Match.MAYBE]
            if sure or (likely and not pull.candidates):
                own.setdefault((sure or likely)[0], pull)
            else:
                stray[name or "an image that is not known yet"] = pull
        return Pulls(own, stray)


def watch_briefly(client: CriClient, references: Sequence[str], pods: NodePods | None) -> Pulls:
    """Return the running pulls of containerd, watched until their rates are known."""
    pulls = ContainerdPulls(client, pods)
    end_at = time.monotonic() + WATCH_S
    while True:
        found = pulls.poll(references)
        if pulls.is_measured or time.monotonic() >= end_at:
            return found
        time.sleep(_PAUSE_S)
