"""The sources of pull progress inside runtimes, each followed to its end.

The source ``containerd`` is containerd's own API on its socket; ``crio`` is the files that
CRI-O downloads to. Like the runtime's own stream (``stream_watch``), they feed a tracker and hand
its views to a sink. ``pycrictl.progress.node_watch`` chooses between them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from pycrictl.containerd.config_toml import PullSettings, config_path, from_file
from pycrictl.containerd.daemon import find_daemon
from pycrictl.containerd.grpc_client import ContainerdClient
from pycrictl.cri.calls.client import CriClient
from pycrictl.errors import (
    ConnectError,
    DeadlineExceeded,
    PycrictlError,
    Unavailable,
    Unimplemented,
)
from pycrictl.progress.content_watcher import ContentWatcher
from pycrictl.progress.crio.watcher import CrioWatcher, open_crio
from pycrictl.progress.endings import (
    REOPEN_PAUSES_S,
    SETTLE_S,
    EndedPull,
    Endings,
    Pace,
    PollResult,
    PullEnding,
    Sink,
    WatchOutcome,
    failures_in,
)
from pycrictl.progress.failures import Failure, Failures
from pycrictl.progress.identity import Match, is_among, match, may_be
from pycrictl.progress.pull_names import ImageOwners
from pycrictl.pulls.registries.access import access_of
from pycrictl.pulls.registries.endpoint import RegistryAccess
from pycrictl.pulls.registries.keyring import Keyring
from pycrictl.pulls.registries.manifests import ManifestRequest, find_digest
from pycrictl.pulls.state import LayerState, Phase, PullState, View
from pycrictl.pulls.tracker import Tracker
from pycrictl.units import format_duration


class ImageTracker(Tracker):
    """Leaves out pulls of unwanted images; pulls that name no image are kept."""

    def __init__(self, wanted: Sequence[str] | None = None) -> None:
        super().__init__()
        self._wanted = wanted

    def wants(self, pull: PullState) -> bool:
        if not pull.image or self._wanted is None:
            return True
        return any(match(image, pull) is not Match.NO for image in self._wanted)

    def apply(self, pull: PullState, *, now: float) -> None:
        if self.wants(pull):
            super().apply(pull, now=now)


# containerd


def awaited(result: PollResult, tracker: ImageTracker) -> tuple[PullState, ...]:
    """Return the wanted running pulls, for when there is nothing to track yet."""
    return tuple(pull for pull in result.active if tracker.wants(pull))


def open_watcher(
    client: CriClient,
    owners: ImageOwners | None = None,
    *,
    wants_manifests: bool = True,
    keyring: Keyring | None = None,
) -> tuple[ContentWatcher | CrioWatcher, PullSettings]:
    """Return a watcher for containerd or CRI-O, and settings; else raise ``Unimplemented``."""
    native = ContainerdClient(client.path, timeout_s=client.timeout_s)
    try:
        version = native.version()
    except Unimplemented:
        crio = open_crio(client, owners, wants_manifests=wants_manifests, keyring=keyring)
        if crio is None:
            raise
        return crio, PullSettings()
    daemon = None
    with suppress(PycrictlError):  # worth having, not worth failing for
        daemon = find_daemon(native)
    settings = from_file(config_path(None if daemon is None else daemon.pid))
    downloads = settings.max_concurrent_downloads
    watcher = ContentWatcher(
        native,
        snapshotter=settings.snapshotter or "overlayfs",
        max_concurrent_downloads=3 if downloads is None else downloads,
        owners=owners,
        find_digest=_finder_of_digests(client.endpoint, version, keyring)
        if wants_manifests
        else None,
    )
    return watcher, settings


def _finder_of_digests(
    endpoint: str, version: str, keyring: Keyring | None
) -> Callable[[str], str | None]:
    access: list[RegistryAccess] = []

    def find(reference: str) -> str | None:
        if not access:  # found out only once it is needed
            access.append(access_of(endpoint, "containerd", version))
        return find_digest(ManifestRequest(reference, access=access[0], keyring=keyring))

    return find


# Causes of failures, including pulls that left no trace in containerd

JOURNAL_S: Final = 0.5
"""How long a line takes to appear in the journal."""

LOOK_AGAIN_S: Final = 5.0
"""Pause between checks for failures, as a pull may fail too fast for any poll to see it."""


class Causes:
    def __init__(self, failures: Failures, *, clock: Callable[[], float] = time.time) -> None:
        self._failures = failures
        self._clock = clock
        self._began_s = clock()
        self._held: list[EndedPull] = []
        self._look_at: float | None = None
        self._next_look = 0.0
        self._shown: dict[str, Failure] = {}

    def add(self, result: PollResult, tracker: ImageTracker, now: float) -> PollResult:
        """Return the result of a poll without the endings whose cause is still being sought."""
        active = [pull for pull in result.active if pull.image]
        done = [pull.image for pull in result.ended if pull.ending is PullEnding.DONE]
        names = [pull.image for pull in active] + done
        for failure in [one for one in self._shown.values() if _is_outdated(one, active, done)]:
            del self._shown[failure.image]
            if failure.image not in names:  # else its layers have replaced it
                tracker.forget(failure.image)
        held = [one for one in result.ended if one.ending is not PullEnding.DONE]
        if held:
            self._held += held
            self._look_at = self._look_at or now + JOURNAL_S
        if now >= self._next_look:
            self._next_look = now + LOOK_AGAIN_S
            self._failures.look(self._clock())
            found = [*self._failures.waiting(), *self._failures.since(self._began_s)]
            self._show(found, tracker, active, now)
        ended = tuple(one for one in result.ended if one.ending is PullEnding.DONE)
        if self._look_at is not None and now >= self._look_at:
            self._look_at = None
            ended += tuple(self._explained(tracker, active, now))
        return PollResult(result.active, ended, is_settling=self._look_at is not None)

    def _explained(
        self, tracker: ImageTracker, active: list[PullState], now: float
    ) -> Iterable[EndedPull]:
        held, self._held = self._held, []
        self._failures.look(self._clock())
        found = self._failures.since(self._began_s - JOURNAL_S)
        for one in held:
            if not one.image and found:
                self._show(found, tracker, active, now)
                continue
            failure = next((each for each in found if may_be(each.image, one.image)), None)
            if failure is not None:
                error = failure.text(self._clock())
                tracker.replace_error(one.image, error)
                one = one._replace(reason=error)
            yield one

    def _show(
        self,
        failures: Iterable[Failure],
        tracker: ImageTracker,
        active: list[PullState],
        now: float,
    ) -> None:
        for failure in failures:
            if not _is_outdated(failure, active):
                self._shown[failure.image] = failure
                pull = PullState(
                    image=failure.image,
                    layers=(LayerState(phase=Phase.FAILED),),
                    pods=(failure.pod,) if failure.pod else (),
                    error=failure.text(self._clock()),
                )
                tracker.apply(pull, now=now)


def _is_outdated(failure: Failure, active: Iterable[PullState], done: Iterable[str] = ()) -> bool:
    """Return whether the image has been pulled since, or may be being pulled again."""
    is_pulled = any(
        match(failure.image, pull, failed_s=failure.at_s) is not Match.NO for pull in active
    )
    return is_pulled or is_among(failure.image, done)


# A whole source


@dataclass
class ContentWatch:
    watcher: ContentWatcher | CrioWatcher
    settings: PullSettings
    sink: Sink
    causes: Causes | None = None
    _has_seen: bool = False
    _nameless: list[str] = field(default_factory=list)
    _has_noted_timeout: bool = False

    def run(self, tracker: ImageTracker, pace: Pace) -> WatchOutcome:
        quiet_since: float | None = None
        endings = Endings(tracker, self.sink)
        while True:
            result = self._poll(tracker)
            now = time.monotonic()
            if self.causes is not None:
                result = self.causes.add(result, tracker, now)
            view = tracker.view(now, time.time())
            self._note_timeout(view)
            if not view.pulls:
                view = replace(view, awaited=awaited(result, tracker))
            self.sink.show(view)
            if pace.follow:
                running = {pull.image for pull in result.active}
                ended = dict.fromkeys(pull.image for pull in result.ended if pull.image)
                endings.end((image for image in ended if image not in running), now)
            if self._take(result, tracker) or result.is_settling:
                quiet_since = None
            elif quiet_since is None:
                quiet_since = now
            elif not pace.follow and now - quiet_since >= SETTLE_S:
                break
            time.sleep(pace.interval_s)
        failures = [*failures_in(view).items(), *(("", reason) for reason in self._nameless)]
        return WatchOutcome(seen=self._has_seen or bool(view.pulls), failures=tuple(failures))

    def _take(self, result: PollResult, tracker: ImageTracker) -> bool:
        """Record ended pulls; return whether a wanted pull is running."""
        runs = any(map(tracker.wants, result.active))
        if runs:
            self._nameless.clear()  # it was tried again
        for pull in result.ended:
            if pull.image or pull.ending is PullEnding.DONE:
                continue
            if pull.ending is PullEnding.FAILED:
                self._nameless.append(pull.reason)
            else:
                self.sink.note(pull.reason)
        self._has_seen |= runs or any(
            tracker.wants(PullState(image=pull.image)) for pull in result.ended
        )
        return runs

    def _poll(self, tracker: Tracker) -> PollResult:
        has_noted = False
        for pause_s in REOPEN_PAUSES_S:
            try:
                return self.watcher.poll(tracker, time.monotonic())
            except (Unavailable, ConnectError, DeadlineExceeded) as exc:
                if not has_noted:
                    self.sink.note(f"{exc.message}; waiting for it")
                    has_noted = True
                time.sleep(pause_s)
        return self.watcher.poll(tracker, time.monotonic())

    def _note_timeout(self, view: View) -> None:
        timeout_s = self.settings.progress_timeout_s
        if self._has_noted_timeout or not timeout_s:
            return
        if any(layer.stalled_s for pull in view.pulls.values() for layer in pull.layers):
            self._has_noted_timeout = True
            self.sink.note(
                f"containerd cancels a pull that receives nothing for {format_duration(timeout_s)}"
                " (image_pull_progress_timeout)"
            )
