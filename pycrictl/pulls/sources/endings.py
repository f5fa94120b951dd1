"""How pulls end: the causes of failures, and each end told once in a watch without end.

*Causes.* A pull that fails before its first byte leaves nothing in containerd. But containerd and
the kubelet each log it to the journal, and the pod's container has a waiting reason. The kubelet
retries after 10 s, then after twice as long each time, up to 5 minutes. Without the API server,
neither the pod of a failure nor the time of its next try is known.

*Ends.* containerd's leases show when a pull ends. A stream (KEP-5334) does not: all layers reported
so far may be complete with more to come, and a server repeats earlier reports, after a reconnect or
as a sign of life. So in a stream, an image has ended when all of it is complete or failed and
nothing has changed for a while; later repetitions are dropped.
"""

from __future__ import annotations

import json
import re
import time
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from pycrictl.base.errors import PullFailed
from pycrictl.base.foreign import parse, parsed
from pycrictl.pulls.reference import Match, canonical, match, may_be
from pycrictl.pulls.state import LayerState, Phase, PullState, View
from pycrictl.pulls.tracker import Tracker
from pycrictl.runtime.cri.calls.redact import quote_reference, redact_text

if TYPE_CHECKING:
    from pycrictl.kube.pods import Pod
    from pycrictl.node.journal import JournalLine


BACK_OFF_S: Final = 10.0
MOST_BACK_OFF_S: Final = 300.0
HISTORY_S: Final = 3600.0
"""How far back attempts are counted."""

REASONS: Final = frozenset(
    "ErrImagePull ImagePullBackOff InvalidImageName ErrImageNeverPull RegistryUnavailable"
    " SignatureValidationFailed ImageInspectError".split()
)
"""Waiting reasons of containers whose image is unavailable (kubelet's ``images`` package)."""

_ONE_ATTEMPT_S: Final = 3.0
"""Lines within this time are one attempt, which both programs log for each credential tried."""

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

    ``at_s`` and ``attempts`` are 0 and ``pod`` is empty if unknown; ``is_final``: no retry.
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
        if match := re.search(_CONTAINERD, message):
            image, error = match[1], _unquoted(match[2])
        elif match := re.search(_KUBELET, message):
            image, error = _unquoted(match[2]), _unquoted(match[1])
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


@dataclass
class Failures:
    read_journal: Callable[[float], Sequence[JournalLine]]
    pods: Callable[[], Sequence[Pod]]
    _written: dict[str, Failure] = field(default_factory=dict)

    def read(self, wall_s: float) -> None:
        """Read the journal; keep the previous result if there are no lines at all."""
        if lines := self.read_journal(wall_s - HISTORY_S):  # else it was too slow
            self._written = from_journal(lines)

    def known(self, since_s: float) -> list[Failure]:
        """Return the failures that pods wait for, and those written since a time."""
        failures, pods = from_pods(self.pods()), self.pods()
        owners = {canonical(image.image): str(pod) for pod in pods for image in pod.images}
        for key, (_, why, at_s, attempts, *_) in self._written.items():
            if key in failures:
                failures[key] = failures[key]._replace(cause=why, at_s=at_s, attempts=attempts)
            elif at_s >= since_s:
                failures[key] = self._written[key]._replace(pod=owners.get(key, ""))
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


# Causes of failures, including pulls that left no trace in containerd

JOURNAL_S: Final = 0.5
"""How long a line takes to appear in the journal."""

READ_AGAIN_S: Final = 5.0
"""Pause between checks for failures, as a pull may fail too fast for any poll to see it."""


class Causes:
    """Holds failed pulls back until the journal and the pods tell their causes, and adds others."""

    def __init__(self, failures: Failures, *, clock: Callable[[], float] = time.time) -> None:
        self._failures = failures
        self._clock = clock
        self._began_s = clock()
        self._held: list[PullState] = []
        self._read_at: float | None = None
        self._next_read = 0.0
        self._shown: dict[str, Failure] = {}

    def add(self, result: PollResult, tracker: Tracker, now: float) -> PollResult:
        """Return the result of a poll without the endings whose cause is still being sought."""
        done = [pull for pull in result.ended if not pull.error]
        held = [pull for pull in result.ended if pull.error]
        active = [pull for pull in result.active if pull.image]
        names = {pull.image for pull in active + done}
        for failure in [
            failure for failure in self._shown.values() if _is_outdated(failure, active, done)
        ]:
            del self._shown[failure.image]
            if failure.image not in names:  # else its layers have replaced it
                tracker.forget(failure.image)
        if held:
            self._held += held
            self._read_at = self._read_at or now + JOURNAL_S
        failures: list[Failure] = []
        if now >= self._next_read:
            self._next_read = now + READ_AGAIN_S
            self._failures.read(self._clock())
            failures = self._failures.known(self._began_s)
        if self._read_at is not None and now >= self._read_at:
            self._failures.read(self._clock())
            held, self._held, self._read_at = self._held, [], None
            since_s = self._began_s - JOURNAL_S
            known = self._failures.known(since_s)
            written = [failure for failure in known if failure.at_s >= since_s]
            for pull in held:
                if not pull.image and written:
                    failures += written
                    continue
                for failure in written:
                    if may_be(failure.image, pull.image):
                        pull = replace(pull, error=failure.text(self._clock()))
                        tracker.replace_error(pull.image, pull.error)
                        break
                done.append(pull)
        for failure in failures:
            if not _is_outdated(failure, active):
                self._shown[failure.image] = failure
                tracker.apply(failure.pull(self._clock()), now=now)
        return PollResult(result.active, tuple(done), is_settling=self._read_at is not None)


def _is_outdated(
    failure: Failure, active: Iterable[PullState], done: Iterable[PullState] = ()
) -> bool:
    """Return whether the image has been pulled since, or may be being pulled again."""
    is_pulled = any(
        match(failure.image, pull, failed_s=failure.at_s) is not Match.NO for pull in active
    )
    return is_pulled or any(may_be(failure.image, pull.image) for pull in done)


SETTLE_S: Final = 1.5
"""How long no pull may run before the watch is over: kubelet tries its credentials one after
another, each in a pull of its own."""

_REMEMBERED: Final = 1024
"""How many ended images are remembered; limited, as their names come from outside."""


class PollResult(NamedTuple):
    """Running pulls, oldest first, and those that have ended since the last poll.

    A running pull's ``image`` is empty until it is known, and then never changes. An ended pull
    without an ``error`` has succeeded; one without an image ended before its image was known, and
    has failed or was not necessary. ``is_settling``: a cause is being sought.
    """

    active: tuple[PullState, ...]
    ended: tuple[PullState, ...]
    is_settling: bool = False

    def apply_to(self, tracker: Tracker, now: float) -> None:
        """Let a tracker have the pulls; it keeps those whose layers are known."""
        for pull in (*self.ended, *self.active):
            tracker.apply(pull, now=now)


class Sink(Protocol):
    def show(self, view: View) -> None: ...

    def note(self, text: str) -> None: ...

    def end(self, images: Collection[str]) -> None:
        """Show the pulls of these images as ended, and leave them out of later views."""


@dataclass
class Endings:
    tracker: Tracker
    sink: Sink
    _over: dict[str, PullState] = field(default_factory=dict)
    _finished_at: dict[str, float] = field(default_factory=dict)

    @property
    def known(self) -> Mapping[str, PullState]:
        """The pulls as a stream has reported them, including those that were shown to their end."""
        return ChainMap(self._over, self.tracker.pulls)

    def track(self, pull: PullState, now: float) -> None:
        """Track the state of a pull from a stream, unless it repeats what has ended."""
        if pull.name in self._over and pull.is_over:
            self._over[pull.name] = pull
            return
        self._over.pop(pull.name, None)
        self.tracker.apply(pull, now=now)

    def end(self, images: Iterable[str], now: float) -> None:
        """End the pulls of these images as last shown, and stop tracking them."""
        if ended := tuple(images):
            self.sink.end(ended)
            for image in ended:
                self.tracker.forget(image)
            self.tracker.measure_anew()
            self.sink.show(self.tracker.view(now, time.time()))

    def show(self, now: float, *, is_final: bool = False) -> View:
        """Show a stream's current state, and end the images that have settled.

        Args:
            is_final: the stream has ended: finished images end at once, unfinished ones are
                dropped silently, as the next stream may report them.
        """
        view = self.tracker.view(now, time.time())
        self.sink.show(view)
        moved = {pull.name for pull, _ in view.changed}
        self._finished_at = {
            name: now if name in moved else self._finished_at.get(name, now)
            for name, pull in view.pulls.items()
            if pull.is_over
        }
        ended = [name for name, at in self._finished_at.items() if is_final or now - at >= SETTLE_S]
        self._over |= {name: PullState(image=view.pulls[name].image) for name in ended}
        while len(self._over) > _REMEMBERED:
            del self._over[next(iter(self._over))]
        for name in view.pulls.keys() - ended if is_final else ():
            self.tracker.forget(name)
        self.end(ended, now)
        return view


@dataclass(frozen=True, slots=True)
class Pace:
    """How a watch goes on.

    Attributes:
        interval_s: the pause between two polls or views.
        follow: keep watching when no pull is left.
        reopen_pauses_s: before each attempt to reopen a broken source; one attempt per pause.
        resume_s: how long pulls may take to resume after their source broke. kubelet retries a
            pull that was cancelled with its proxy, after 10 s at first.
    """

    interval_s: float
    follow: bool = False
    reopen_pauses_s: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 5.0, 5.0)
    resume_s: float = 60.0


Outcome = Mapping[str, str] | None
"""How a watch ended: the errors of the failed pulls by image; None if no pull was seen."""


def failures_in(view: View) -> dict[str, str]:
    return {name: pull.error for name, pull in view.pulls.items() if pull.has_failed}


def conclude(outcome: Outcome, pod: str, sink: Sink) -> None:
    """Say if nothing was seen; raise ``PullFailed`` with the reason of the first failure."""
    if outcome is None:
        whose = f' for "{pod}"' if pod else ""
        return sink.note(f"no image is being pulled{whose}")
    for image, reason in outcome.items():
        more = f" (and {len(outcome) - 1} more)" if len(outcome) > 1 else ""
        name = f" of {quote_reference(image)}" if image else ""
        raise PullFailed(f"the pull{name} failed: {reason}{more}")
    return None
