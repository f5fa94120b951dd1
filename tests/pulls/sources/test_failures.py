"""Causes of failed pulls: from the journal, from what pods wait for, and both together."""

from __future__ import annotations

import json
import time

import pytest

from pycrictl.kube.pods import Pod, PodImage
from pycrictl.node.journal import JournalLine
from pycrictl.pulls.sources.endings import PollResult
from pycrictl.pulls.sources.failures import Causes, Failure, cause, from_journal, from_pods
from pycrictl.pulls.state import LayerState, Phase, PullState
from pycrictl.pulls.tracker import Tracker

WEB = "registry.example/shop/web:1.4"
NOT_FOUND = (
    f'failed to pull and unpack image \\"{WEB}\\": failed to resolve reference \\"{WEB}\\":'
    f" {WEB}: not found"
)


def containerd(at_s: float, error: str = NOT_FOUND, image: str = WEB) -> JournalLine:
    error = error.replace("\\", "")
    quoted = error.replace('"', '\\"')
    return JournalLine(
        at_s,
        "containerd",
        f'time="2026-11-22T19:00:00.1Z" level=error msg="PullImage \\"{image}\\" failed"'
        f' error="rpc error: code = NotFound desc = {quoted}"',
    )


def kubelet(at_s: float, error: str = NOT_FOUND, image: str = WEB) -> JournalLine:
    return JournalLine(
        at_s,
        "kubelet",
        'E1122 19:00:00.250000    1234 log.go:32] "PullImage from image service failed"'
        f' err="rpc error: code = NotFound desc = {error}" image="{image}"',
    )


def done(at_s: float, image: str = WEB) -> JournalLine:
    text = f'level=info msg="PullImage \\"{image}\\" returns image reference \\"sha256:1\\""'
    return JournalLine(at_s, "containerd", text)


def pod(reason: str, message: str = "", image: str = WEB) -> Pod:
    return Pod("default", "web", "u", "Pending", (PodImage("web", image, reason, message),), ())


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (f'rpc error: code = NotFound desc = failed to pull and unpack image "{WEB}": failed to'
         f' resolve reference "{WEB}": {WEB}: not found', f"{WEB}: not found"),
        (f'Back-off pulling image "{WEB}": ErrImagePull: rpc error: code = Unknown desc = failed to'
         f' pull and unpack image "{WEB}": failed to resolve reference "{WEB}": failed to do'
         ' request: Head "https://r/v2/": dial tcp: lookup r: no such host',
         'Head "https://r/v2/": dial tcp: lookup r: no such host'),
        (f'Back-off pulling image "{WEB}"', f'Back-off pulling image "{WEB}"'),
        ("unexpected status from HEAD request to https://u:p@r/v2/x: 401 Unauthorized",
         "unexpected status from HEAD request to https://[redacted]@r/v2/x: 401 Unauthorized"),
        ("two\nlines", "two lines"),
        ("", ""),
    ],
)  # fmt: skip
def test_the_cause_without_what_wraps_it(error: str, expected: str) -> None:
    assert cause(error) == expected


def test_the_journal_of_both() -> None:
    lines = [containerd(100.0), kubelet(100.1), containerd(112.0), kubelet(112.2), kubelet(113.0)]
    expected = Failure(WEB, f"{WEB}: not found", 113.0, 2)
    assert list(from_journal(lines).values()) == [expected]
    assert from_journal([*lines, done(140.0)]) == {}
    assert from_journal([JournalLine(1.0, "kubelet", "something else")]) == {}


def test_a_containerd_that_logs_json() -> None:
    fields = {"level": "error", "msg": f'PullImage "{WEB}" failed', "error": 'it says "no"'}
    lines = [JournalLine(5.0, "containerd", json.dumps(fields))]
    assert list(from_journal(lines).values()) == [Failure(WEB, 'it says "no"', 5.0, 1)]
    over = {"msg": f'PullImage "{WEB}" returns image reference "sha256:1"'}
    lines += [JournalLine(6.0, "containerd", json.dumps(over)), JournalLine(7.0, "x", "{broken")]
    assert from_journal(lines) == {}


def test_what_pods_wait_for_in_vain() -> None:
    assert from_pods([pod("ContainerCreating")]) == {}
    (failure,) = from_pods([pod("ImagePullBackOff", f'Back-off pulling image "{WEB}"')]).values()
    assert failure.pod == "default/web"
    assert failure.text(0.0).endswith("; the kubelet tries again")
    (final,) = from_pods([pod("InvalidImageName", image="A:b")]).values()
    assert final.text(0.0) == "InvalidImageName"


@pytest.mark.parametrize(("attempts", "pause_s"), [(1, 10), (2, 20), (3, 40), (6, 300), (99, 300)])
def test_when_it_is_tried_again(attempts: int, pause_s: int) -> None:
    failure = Failure(WEB, "no", 1_700_000_000.0, attempts, pod="default/web")
    when = time.strftime("%H:%M:%S", time.localtime(1_700_000_000.0 + pause_s))
    assert failure.text(1_700_000_001.0) == f"no; next try about {when}"
    assert failure.text(1_700_000_302.0) == "no; the next try is due"
    assert failure._replace(pod="").text(0.0) == "no"


WRITTEN_S, PAUSE_S = 0.5, 5.0


class Scene:
    """A watch, the journal and the pods, at a time that a test sets."""

    def __init__(self, *pods: Pod) -> None:
        self.lines: list[JournalLine] = []
        self.causes = Causes(
            lambda since_s: self.lines,
            lambda: pods,
            written_s=WRITTEN_S,
            pause_s=PAUSE_S,
            clock=lambda: 1000.0,
        )
        self.tracker = Tracker()

    def add(self, now: float, *active: PullState, ended: tuple[PullState, ...] = ()) -> PollResult:
        result = self.causes.add(PollResult(active, ended), now)
        result.apply_to(self.tracker, now)
        return result

    def failed(self, now: float) -> dict[str, str]:
        pulls = self.tracker.view(now).pulls.values()
        return {pull.image: pull.error for pull in pulls if pull.has_failed}


UNKNOWN = PullState(error="unknown")


def test_a_pull_that_failed_before_its_first_byte() -> None:
    scene = Scene()
    result = scene.add(0.0, ended=(UNKNOWN,))
    assert (result.ended, result.is_settling) == ((), True)
    scene.lines = [containerd(1000.2)]
    result = scene.add(WRITTEN_S)
    assert (result.ended, result.is_settling) == ((), False)
    assert scene.failed(1.0) == {WEB: f"{WEB}: not found"}


def test_a_known_image_gets_its_cause_and_fails_once() -> None:
    scene = Scene()
    shown = "registry.example/shop/web@sha256:123456789012"
    layers = tuple(LayerState(name=name, phase=Phase.FAILED, total=9) for name in "ab")
    scene.add(0.0, ended=(PullState(image=shown, layers=layers, error="it ended"),))
    assert scene.failed(0.0) == {}
    scene.lines = [containerd(1000.2, "unexpected EOF")]
    (ended,) = scene.add(WRITTEN_S).ended
    assert ended.error == "unexpected EOF"
    assert scene.failed(1.0) == {shown: "unexpected EOF"}


def test_a_pod_in_back_off_is_shown_until_its_next_try() -> None:
    scene = Scene(pod("ImagePullBackOff", "ErrImagePull: no"))
    scene.lines = [kubelet(980.0), kubelet(995.0)]
    scene.add(0.0)
    ((image, error),) = scene.failed(0.0).items()
    assert image == WEB
    assert error.startswith(f"{WEB}: not found; next try about ")
    scene.add(1.0, PullState(image="registry.example/shop/web@sha256:123456789012"))
    assert scene.failed(1.0) == {}


def test_a_failure_of_the_same_name_gives_way_to_its_layers() -> None:
    scene = Scene(pod("ErrImagePull", "no"))
    scene.add(0.0)
    assert list(scene.failed(0.0)) == [WEB]
    layer = LayerState(name="l", phase=Phase.DOWNLOADING, progress=1, total=9)
    pull = PullState(image=WEB, layers=(layer,))
    for now in (1.0, 1.0 + PAUSE_S):  # the pod's status is late
        scene.add(now, pull)
        assert scene.failed(now) == {}
        assert scene.tracker.view(now).sums.count == 1


def test_a_journal_that_is_too_slow_once() -> None:
    scene = Scene()
    scene.lines = [containerd(1000.2)]
    scene.add(0.0)
    scene.lines = []
    scene.add(PAUSE_S, ended=(PullState(image=WEB, error="it ended"),))
    (ended,) = scene.add(PAUSE_S + WRITTEN_S).ended
    assert ended.error.startswith(f"{WEB}: not found")


def test_a_pull_that_failed_faster_than_a_poll() -> None:
    scene = Scene()
    scene.add(0.0)
    scene.lines = [containerd(1003.0)]
    scene.add(PAUSE_S - 0.1)
    assert scene.failed(4.9) == {}
    scene.add(PAUSE_S)
    assert list(scene.failed(5.0)) == [WEB]
