"""The sources of pull progress inside runtimes, each followed to its end.

The source ``containerd`` is containerd's own API on its socket; ``crio`` is the files that
CRI-O downloads to. Like the runtime's own stream (``stream_watch``), they feed a tracker and hand
its views to a sink. Which one to take is the business of ``pycrictl.progress.node_watch``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from pycrictl._proto import cri_pb2
from pycrictl.containerd.config_toml import PullSettings, pull_settings
from pycrictl.containerd.daemon import find_daemon
from pycrictl.containerd.grpc_client import ContainerdClient
from pycrictl.errors import (
    ConnectError,
    DeadlineExceeded,
    PycrictlError,
    Unavailable,
    Unimplemented,
)
from pycrictl.progress.content_watcher import ContentWatcher, PollResult, PullEnding
from pycrictl.progress.crio.watcher import CrioWatcher, open_crio
from pycrictl.progress.endings import (
    REOPEN_PAUSES_S,
    SETTLE_S,
    Endings,
    Pace,
    Sink,
    WatchOutcome,
    failed_items,
)
from pycrictl.progress.reference import is_same_image
from pycrictl.pulls.model import STALLED_S, Awaited, Phase, View
from pycrictl.pulls.tracker import Tracker
from pycrictl.units import format_duration

if TYPE_CHECKING:
    from pycrictl.cri.calls.client import CriClient
    from pycrictl.progress.pull_names import ImageOwners
    from pycrictl.wire.progress import Report


class ImageTracker(Tracker):
    """Leaves out reports on other images than those wanted; one that names none counts."""

    def __init__(self, image: str = "", is_wanted: Callable[[str], bool] | None = None) -> None:
        super().__init__()
        self._wanted = image
        self._is_wanted = is_wanted

    def wants(self, image: str) -> bool:
        if self._is_wanted is not None and image and not self._is_wanted(image):
            return False
        return not self._wanted or not image or is_same_image(self._wanted, image)

    def apply(
        self, report: Report, *, now: float, idle_s: float = 0.0, age_s: float | None = None
    ) -> None:
        if self.wants(report.image):
            super().apply(report, now=now, idle_s=idle_s, age_s=age_s)


# containerd


def awaited(result: PollResult, tracker: ImageTracker) -> tuple[Awaited, ...]:
    """Return the running pulls, if wanted, while the tracker has no item of them."""
    now_s = time.time()
    return tuple(
        Awaited(pull.image, is_begun=True, waited_s=max(now_s - pull.started_s, 0.0))
        for pull in result.active
        if tracker.wants(pull.image)
    )


def open_watcher(
    client: CriClient, owners: ImageOwners | None = None, *, wants_manifests: bool = True
) -> tuple[ContentWatcher | CrioWatcher, PullSettings]:
    """Return a watcher, and containerd's settings; another runtime is ``Unimplemented``."""
    native = ContainerdClient(client.path, timeout_s=client.timeout_s)
    try:
        settings = _settings(client, native)
    except Unimplemented:
        if (crio := open_crio(client, owners, wants_manifests=wants_manifests)) is None:
            raise
        return crio, PullSettings()
    return _watcher(native, settings, owners), settings


def _settings(client: CriClient, native: ContainerdClient) -> PullSettings:
    native.version()
    info: dict[str, str] = {}
    daemon = None
    with suppress(PycrictlError):  # worth having, not worth failing for
        info = dict(client.call("Status", cri_pb2.StatusRequest(verbose=True)).info)
        daemon = find_daemon(native)
    return pull_settings(info, pid=daemon.pid if daemon is not None else None)


def _watcher(
    native: ContainerdClient, settings: PullSettings, owners: ImageOwners | None
) -> ContentWatcher:
    downloads = settings.max_concurrent_downloads
    return ContentWatcher(
        native,
        snapshotter=settings.snapshotter or "overlayfs",
        max_concurrent_downloads=3 if downloads is None else downloads,
        owners=owners,
    )


Explain: TypeAlias = Callable[[PollResult, ImageTracker, float], PollResult]
"""Returns what a poll saw with the causes of failures, which go to the tracker, too."""


class ContentWatch:
    def __init__(
        self,
        watcher: ContentWatcher | CrioWatcher,
        settings: PullSettings,
        sink: Sink,
        explain: Explain | None = None,
    ) -> None:
        self._watcher = watcher
        self._settings = settings
        self._sink = sink
        self._explain = explain
        self._has_seen = False
        self._nameless: list[str] = []
        self._has_noted_timeout = False

    def run(self, tracker: ImageTracker, pace: Pace) -> WatchOutcome:
        quiet_since: float | None = None
        endings = Endings(tracker, self._sink)
        while True:
            result = self._poll(tracker)
            now = time.monotonic()
            if self._explain is not None:
                result = self._explain(result, tracker, now)
            view = tracker.view(now)
            self._note_timeout(view)
            if not view.items:
                view = replace(view, awaited=awaited(result, tracker))
            self._sink.show(view)
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
        failures = [*failed_items(view).items(), *(("", reason) for reason in self._nameless)]
        return WatchOutcome(seen=self._has_seen or bool(view.items), failures=tuple(failures))

    def _take(self, result: PollResult, tracker: ImageTracker) -> bool:
        """Note what ended; return whether a wanted pull is running."""
        runs = any(tracker.wants(pull.image) for pull in result.active)
        if runs:
            self._nameless.clear()  # it was tried again
        for pull in result.ended:
            if pull.image or pull.ending is PullEnding.DONE:
                continue
            if pull.ending is PullEnding.FAILED:
                self._nameless.append(pull.reason)
            else:
                self._sink.note(pull.reason)
        self._has_seen |= runs or any(tracker.wants(pull.image) for pull in result.ended)
        return runs

    def _poll(self, tracker: Tracker) -> PollResult:
        has_noted = False
        for pause_s in REOPEN_PAUSES_S:
            try:
                return self._watcher.poll(tracker, time.monotonic())
            except (Unavailable, ConnectError, DeadlineExceeded) as exc:
                if not has_noted:
                    self._sink.note(f"{exc.message}; waiting for it")
                    has_noted = True
                time.sleep(pause_s)
        return self._watcher.poll(tracker, time.monotonic())

    def _note_timeout(self, view: View) -> None:
        timeout_s = self._settings.progress_timeout_s
        if self._has_noted_timeout or not timeout_s:
            return
        if any(item.phase is Phase.DOWNLOADING and item.idle_s >= STALLED_S for item in view.items):
            self._has_noted_timeout = True
            self._sink.note(
                f"containerd cancels a pull that receives nothing for {format_duration(timeout_s)}"
                " (image_pull_progress_timeout)"
            )
