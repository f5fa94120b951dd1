"""Pods and pulls of a node as an agent serves them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pycrictl.kube.pods import Pod, parse_pod
from pycrictl.pulls.state import PullState
from tests.cluster.agent import standing
from tests.pulls.tracking import Report, Tracker

IMAGE = "registry.test/team/app:1"
NOW_S = 1795387110.0


def pod(**changes: Any) -> Pod:
    pod = parse_pod(standing.pod("web", **changes))
    assert pod is not None
    return pod


def pull(*reports: Report, is_running: bool = True, image: str = IMAGE) -> PullState:
    tracker = Tracker()
    for second in (0.0, 10.0):
        for report in reports:
            scale = 1 if second else 0
            tracker.tell(report._replace(progress=report.progress * scale), now=second)
    pull = tracker.view(10.0).pulls[IMAGE]
    ended_s = 0.0 if is_running else NOW_S
    return replace(pull, image=image, is_running=is_running, began_s=NOW_S - 10, ended_s=ended_s)


def layer(phase: str, progress: int = 0, name: str = "sha256:a", **more: Any) -> Report:
    return Report(IMAGE, name, progress, 100, phase=phase, **more)


WAITING = {"waiting": {"reason": "ContainerCreating"}}
BACK_OFF = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling "x"'}}
FAILED = {"waiting": {"reason": "ErrImagePull", "message": "no such host"}}
RUNNING: dict[str, Any] = {"running": {}}


STARTED = {"running": {"startedAt": "2026-11-22T10:00:05Z"}}
