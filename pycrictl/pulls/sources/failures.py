"""Causes of failed pulls: from the journal, and from what pods wait for.

A pull that fails before its first byte leaves nothing in containerd. But containerd and the kubelet
each log it to the journal, and the pod's container has a waiting reason. The kubelet retries after
10 s, then after twice as long each time, up to 5 minutes. Without the API server, neither the pod
of a failure nor the time of its next try is known.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from pycrictl.base.foreign import parse, parsed
from pycrictl.node.journal import HISTORY_S
from pycrictl.pulls.reference import Match, canonical, match, may_be
from pycrictl.pulls.sources.endings import PollResult
from pycrictl.pulls.state import LayerState, Phase, PullState
from pycrictl.runtime.cri.calls.redact import redact_text

if TYPE_CHECKING:
    from pycrictl.kube.pods import Pod
    from pycrictl.node.journal import JournalLine

BACK_OFF_S: Final = 10.0
MOST_BACK_OFF_S: Final = 300.0

REASONS: Final = frozenset(
    "ErrImagePull ImagePullBackOff InvalidImageName ErrImageNeverPull RegistryUnavailable"
    " SignatureValidationFailed ImageInspectError".split()
)
"""Waiting reasons of containers whose image is unavailable (kubelet's ``images`` package)."""

_ONE_ATTEMPT_S: Final = 3.0
"""Lines within this time are one attempt: both programs log a failure for each credential tried."""

_QUOTED: Final = r'"((?:[^"\\]|\\.)*)"'
_CONTAINERD: Final = rf'msg="PullImage \\"([^"\\]+)\\" failed" error={_QUOTED}'
_KUBELET: Final = rf'"PullImage from image service failed" err={_QUOTED} image={_QUOTED}'
_DONE: Final = r'msg="PullImage \\"([^"\\]+)\\" returns image reference'
_WRAPPINGS: Final = (
    r"^(?:rpc error: code = \w+ desc = |Back-off pulling image \"[^\"]*\"(?:: |$)|ErrImagePull: "
    r"|failed to pull and unpack image \"[^\"]*\": |failed to pull image \"[^\"]*\": "
    r"|failed to resolve (?:reference|image) \"[^\"]*\": |failed to do request: "
    r"|failed to copy: |httpReadSeeker: failed open: |pull image .* failed: )"
)


class Failure(NamedTuple):
    """The last failure of an image's pull.

    ``at_s`` and ``attempts`` are 0 and ``pod`` is empty if unknown; ``is_final``: never retried.
    """

    image: str
    cause: str
    at_s: float = 0.0
    attempts: int = 0
    pod: str = ""
    is_final: bool = False

    def next_try(self, wall_s: float) -> str:
        """Return when the kubelet retries, as far as is known; empty if there is no retry."""
        if self.is_final or not self.pod:
            return ""
        if not self.at_s:
            return "the kubelet tries again"
        back_off_s = min(BACK_OFF_S * 2.0 ** (max(self.attempts, 1) - 1), MOST_BACK_OFF_S)
        if self.at_s + back_off_s < wall_s:
            return "the next try is due"
        when = time.strftime("%H:%M:%S", time.localtime(self.at_s + back_off_s))
        return f"next try about {when}"

    def text(self, wall_s: float) -> str:
        return "; ".join(filter(None, (self.cause, self.next_try(wall_s))))

    def pull(self, wall_s: float) -> PullState:
        """Return the failed pull, of which nothing else is known."""
        return PullState(
            image=self.image,
            layers=(LayerState(phase=Phase.FAILED),),
            pods=(self.pod,) if self.pod else (),
            error=self.text(wall_s),
        )


def cause(error: str) -> str:
    """Return the error of a pull without its wrapping messages and without secrets."""
    text = " ".join(error.split())
    while (wrapping := re.match(_WRAPPINGS, text)) and wrapping.end() < len(text):
        text = text[wrapping.end() :]
    return redact_text(text)


def from_journal(lines: Sequence[JournalLine]) -> dict[str, Failure]:
    """Return images whose last pull failed, by canonical reference; ``lines`` are oldest first."""
    failures: dict[str, Failure] = {}
    for line in lines:
        message = as_text(line.message)
        if done := re.search(_DONE, message):
            failures.pop(canonical(done[1]), None)
            continue
        if said := re.search(_CONTAINERD, message):
            image, error = said[1], _unquoted(said[2])
        elif said := re.search(_KUBELET, message):
            image, error = _unquoted(said[2]), _unquoted(said[1])
        else:
            continue
        before = failures.get(canonical(image))
        attempts = 1
        if before is not None:
            attempts = before.attempts + (line.at_s - before.at_s >= _ONE_ATTEMPT_S)
        failures[canonical(image)] = Failure(image, cause(error), line.at_s, attempts)
    return failures


def from_pods(pods: Iterable[Pod]) -> dict[str, Failure]:
    failures: dict[str, Failure] = {}
    for pod in pods:
        for image in pod.images:
            if image.reason in REASONS:
                why = cause(image.message) or image.reason
                is_final = image.reason in ("InvalidImageName", "ErrImageNeverPull")
                failure = Failure(image.image, why, pod=str(pod), is_final=is_final)
                failures.setdefault(canonical(image.image), failure)
    return failures


def known_failures(
    lines: Sequence[JournalLine], pods: Sequence[Pod], *, since_s: float = 0.0
) -> list[Failure]:
    """Return the failures that pods wait for, and those that the journal has since a time."""
    failures = from_pods(pods)
    owners = {canonical(image.image): str(pod) for pod in pods for image in pod.images}
    for key, failure in from_journal(lines).items():
        if key in failures:
            failures[key] = failures[key]._replace(
                cause=failure.cause, at_s=failure.at_s, attempts=failure.attempts
            )
        elif failure.at_s >= since_s:
            failures[key] = failure._replace(pod=owners.get(key, ""))
    return list(failures.values())


def as_text(message: str) -> str:
    """Convert a JSON log line of containerd to its text form; return others unchanged."""
    if not message.startswith("{"):
        return message
    if not (fields := parsed(message)):
        return message
    known = ("level", "msg", "error")
    return " ".join(f"{key}={json.dumps(fields[key])}" for key in known if key in fields)


def _unquoted(text: str) -> str:
    try:
        return str(parse(f'"{text}"'))
    except ValueError:
        return text.replace('\\"', '"')


class Causes:
    """Holds failed pulls back until the next look for causes; adds failed pulls that no poll saw.

    Args:
        read_journal: returns the lines since a time; none if reading takes too long.
        written_s: how long a line takes to appear in the journal.
        pause_s: the pause between two readings, as a pull may fail too fast for any poll to see it.
    """

    def __init__(
        self,
        read_journal: Callable[[float], Sequence[JournalLine]],
        pods: Callable[[], Sequence[Pod]],
        *,
        written_s: float = 0.5,
        pause_s: float = 5.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._read_journal, self._pods, self._clock = read_journal, pods, clock
        self._written_s, self._pause_s = written_s, pause_s
        self._since_s = clock() - written_s
        self._lines: Sequence[JournalLine] = ()
        self._held: list[PullState] = []
        self._next_read = 0.0
        self._shown: dict[str, Failure] = {}

    def add(self, result: PollResult, now: float) -> PollResult:
        """Return a poll's result with causes: without held pulls, and with failures it missed."""
        active = [pull for pull in result.active if pull.image]
        ended = [pull for pull in result.ended if not pull.error]
        if (held := [pull for pull in result.ended if pull.error]) and not self._held:
            self._next_read = now + self._written_s
        self._held += held
        old = [failure for failure in self._shown.values() if _is_outdated(failure, active, ended)]
        for failure in old:
            del self._shown[failure.image]
        names = {pull.image for pull in (*active, *ended)}  # their layers replace the failures
        gone = [failure.image for failure in old if failure.image not in names]
        failed: list[PullState] = []
        if now >= self._next_read:
            self._next_read = now + self._pause_s
            wall_s = self._clock()
            # A journal that was too slow says no more than it did before.
            self._lines = self._read_journal(wall_s - HISTORY_S) or self._lines
            failures = known_failures(self._lines, self._pods(), since_s=self._since_s)
            told = self._end_held(failures, ended, wall_s)
            for failure in failures:
                if failure not in told and not _is_outdated(failure, active):
                    self._shown[failure.image] = failure
                    failed.append(failure.pull(wall_s))
        return PollResult(
            result.active, tuple(ended), tuple(failed), tuple(gone), is_settling=bool(self._held)
        )

    def _end_held(
        self, failures: Sequence[Failure], ended: list[PullState], wall_s: float
    ) -> list[Failure]:
        """Move held pulls to ``ended``; return the failures that were the causes of some."""
        written = [failure for failure in failures if failure.at_s >= self._since_s]
        told: list[Failure] = []
        for pull in self._held:
            cause_of = [failure for failure in written if may_be(failure.image, pull.image)][:1]
            told += cause_of
            if cause_of:
                ended.append(replace(pull, error=cause_of[0].text(wall_s)))
            elif pull.image or not written:  # else it is one of those written
                ended.append(pull)
        self._held = []
        return told


def _is_outdated(
    failure: Failure, active: Iterable[PullState], done: Iterable[PullState] = ()
) -> bool:
    """Return whether the image has been pulled since, or may be being pulled again."""
    is_pulled = any(
        match(failure.image, pull, failed_s=failure.at_s) is not Match.NO for pull in active
    )
    return is_pulled or any(may_be(failure.image, pull.image) for pull in done)
