"""The sources of pull progress inside runtimes, each followed to its end.

The source ``containerd`` is containerd's own API on its socket; ``crio`` is the files that
CRI-O downloads to. Like the runtime's own stream (``stream_watch``), they feed a tracker and hand
its views to a sink. ``pycrictl.pulls.sources.node_watch`` chooses between them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pycrictl.base.errors import ConnectError, DeadlineExceeded, Unavailable, Unimplemented
from pycrictl.base.units import format_duration
from pycrictl.pulls.registries.access import access_of
from pycrictl.pulls.registries.credentials import Keyring
from pycrictl.pulls.registries.endpoint import RegistryAccess
from pycrictl.pulls.registries.registry_client import ManifestRequest, find_digest
from pycrictl.pulls.sources.content_watcher import ContentWatcher
from pycrictl.pulls.sources.crio.watcher import CrioWatcher, open_crio
from pycrictl.pulls.sources.endings import (
    REOPEN_PAUSES_S,
    SETTLE_S,
    Endings,
    Pace,
    PollResult,
    Sink,
    WatchOutcome,
    failures_in,
)
from pycrictl.pulls.sources.failures import Failure, Failures
from pycrictl.pulls.sources.identity import Match, match, may_be
from pycrictl.pulls.sources.pull_names import ImageOwners
from pycrictl.pulls.state import PullState, View
from pycrictl.pulls.tracker import Tracker
from pycrictl.runtime.containerd.config_toml import PullSettings
from pycrictl.runtime.containerd.daemon import settings_of
from pycrictl.runtime.containerd.grpc_client import ContainerdClient
from pycrictl.runtime.cri.calls.client import CriClient


class ImageTracker(Tracker):
    """Leaves out pulls of unwanted images; pulls that name no image are kept."""

    def __init__(self, wanted: Sequence[str] | None = None) -> None:
        super().__init__()
        self._wanted = wanted

    def wanted(self, pulls: Iterable[PullState]) -> tuple[PullState, ...]:
        return tuple(
            pull
            for pull in pulls
            if not pull.image
            or self._wanted is None
            or any(match(image, pull) is not Match.NO for image in self._wanted)
        )

    def apply(self, pull: PullState, *, now: float) -> None:
        for wanted in self.wanted([pull]):
            super().apply(wanted, now=now)


# containerd


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
    settings = settings_of(native)
    downloads = settings.max_concurrent_downloads
    watcher = ContentWatcher(
        native,
        snapshotter=settings.snapshotter,
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
    """Holds failed pulls back until the journal and the pods tell their causes, and adds others."""

    def __init__(self, failures: Failures, *, clock: Callable[[], float] = time.time) -> None:
        self._failures = failures
        self._clock = clock
        self._began_s = clock()
        self._held: list[PullState] = []
        self._look_at: float | None = None
        self._next_look = 0.0
        self._shown: dict[str, Failure] = {}

    def add(self, result: PollResult, tracker: ImageTracker, now: float) -> PollResult:
        """Return the result of a poll without the endings whose cause is still being sought."""
        done = [pull for pull in result.ended if not pull.error]
        held = [pull for pull in result.ended if pull.error]
        active = [pull for pull in result.active if pull.image]
        names = {pull.image for pull in active + done}
        for failure in [one for one in self._shown.values() if _is_outdated(one, active, done)]:
            del self._shown[failure.image]
            if failure.image not in names:  # else its layers have replaced it
                tracker.forget(failure.image)
        if held:
            self._held += held
            self._look_at = self._look_at or now + JOURNAL_S
        found: list[Failure] = []
        if now >= self._next_look:
            self._next_look = now + LOOK_AGAIN_S
            self._failures.look(self._clock())
            found = [*self._failures.waiting(), *self._failures.since(self._began_s)]
        if self._look_at is not None and now >= self._look_at:
            self._failures.look(self._clock())
            held, self._held, self._look_at = self._held, [], None
            causes = self._failures.since(self._began_s - JOURNAL_S)
            for pull in held:
                if not pull.image and causes:
                    found += causes
                    continue
                cause = next((one for one in causes if may_be(one.image, pull.image)), None)
                if cause is not None:
                    pull = replace(pull, error=cause.text(self._clock()))
                    tracker.replace_error(pull.image, pull.error)
                done.append(pull)
        for failure in found:
            if not _is_outdated(failure, active):
                self._shown[failure.image] = failure
                tracker.apply(failure.pull(self._clock()), now=now)
        return PollResult(result.active, tuple(done), is_settling=self._look_at is not None)


def _is_outdated(
    failure: Failure, active: Iterable[PullState], done: Iterable[PullState] = ()
) -> bool:
    """Return whether the image has been pulled since, or may be being pulled again."""
    is_pulled = any(
        match(failure.image, pull, failed_s=failure.at_s) is not Match.NO for pull in active
    )
    return is_pulled or any(may_be(failure.image, pull.image) for pull in done)


# A whole source


@dataclass
class ContentWatch:
    watcher: ContentWatcher | CrioWatcher
    settings: PullSettings
    sink: Sink
    causes: Causes | None = None

    def run(self, tracker: ImageTracker, pace: Pace) -> WatchOutcome:
        """Poll the source until no wanted pull runs any more, or without end."""
        quiet_since: float | None = None
        endings = Endings(tracker, self.sink)
        has_seen = has_noted_timeout = False
        while True:
            result = self._poll(tracker)
            now = time.monotonic()
            if self.causes is not None:
                result = self.causes.add(result, tracker, now)
            view = tracker.view(now, time.time())
            if not has_noted_timeout and (note := self._timeout(view)):
                has_noted_timeout = True
                self.sink.note(note)
            running = tracker.wanted(result.active)
            self.sink.show(view if view.pulls else replace(view, awaited=running))
            for pull in result.ended:
                if not pull.image and pull.error:
                    self.sink.note(pull.error)
            if pace.follow:
                names = {pull.image for pull in result.active}
                ended = dict.fromkeys(pull.image for pull in result.ended if pull.image)
                endings.end((image for image in ended if image not in names), now)
            has_seen = has_seen or bool(running or tracker.wanted(result.ended))
            if running or result.is_settling:
                quiet_since = None
            elif quiet_since is None:
                quiet_since = now
            elif not pace.follow and now - quiet_since >= SETTLE_S:
                return WatchOutcome(seen=has_seen or bool(view.pulls), failures=failures_in(view))
            time.sleep(pace.interval_s)

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

    def _timeout(self, view: View) -> str:
        """Return how long containerd lets a pull stall, if one has stalled."""
        timeout_s = self.settings.progress_timeout_s
        if not timeout_s or not any(
            layer.stalled_s for pull in view.pulls.values() for layer in pull.layers
        ):
            return ""
        return (
            f"containerd cancels a pull that receives nothing for {format_duration(timeout_s)}"
            " (image_pull_progress_timeout)"
        )
