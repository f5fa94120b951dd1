"""``image-pull-progress``: whose pulls to watch, by which source, and how it ends."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pycrictl._proto import cri_pb2
from pycrictl.cri.calls.redact import quote_reference
from pycrictl.cri.lists.lookup import find_container, find_pod
from pycrictl.errors import (
    Interrupted,
    NotFound,
    PullFailed,
    PycrictlError,
    RemoteProtocolError,
    Unimplemented,
    UpgradeRefused,
    UsageError,
)
from pycrictl.progress.endings import Sink
from pycrictl.progress.sources import (
    ImageTracker,
    Pace,
    WatchOutcome,
    open_watcher,
    watch_content,
    watch_stream,
)

if TYPE_CHECKING:
    from pycrictl.cri.calls.client import CriClient

log = logging.getLogger("pycrictl.progress")

SOURCES: Final = ("auto", "cri", "containerd")

_NOT_OFFERED: Final = (404, 405)


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """What to watch, as the user typed it; empty means not given.

    Raises:
        UsageError: there is no such source, or it needs a pod or a container.
    """

    pod: str = ""
    container: str = ""
    image: str = ""
    source: str = "auto"

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise UsageError(
                f'unknown source "{self.source}"', hint=f"sources are {', '.join(SOURCES)}"
            )
        if self.source == "cri" and not self.pod and not self.container:
            raise UsageError("--source cri needs a pod or a container")


class WatchTarget:
    """The pod and the container that are meant, asked of the runtime."""

    def __init__(self, client: CriClient, request: WatchRequest) -> None:
        self._client = client
        self._name = request.container
        self.pod = find_pod(client, request.pod) if request.pod else None
        self.container: cri_pb2.Container | None = None
        self.look_for_container()
        if self._name and self.container is None and self.pod is None:
            raise NotFound(
                f'no container "{self._name}"',
                hint="name its pod as well if the container does not exist yet",
            )

    @property
    def pod_sandbox_id(self) -> str:
        """The pod's full ID; empty without a pod."""
        return self.pod.id if self.pod is not None else ""

    def look_for_container(self) -> bool:
        """Look for a container that was named and may have been created by now."""
        if self._name and self.container is None:
            self.container = find_container(
                self._client, self._name, pod_sandbox_id=self.pod_sandbox_id
            )
        return self.container is not None

    def open_stream(self) -> str:
        """Ask for the URL of a progress stream (``ImagePullProgress``, KEP-5334)."""
        self.look_for_container()
        message = cri_pb2.ImagePullProgressRequest(
            pod_sandbox_id=self.pod_sandbox_id,
            container_id=self.container.id if self.container is not None else "",
        )
        url: str = self._client.call("ImagePullProgress", message).url
        if not url:
            raise RemoteProtocolError("the runtime answered ImagePullProgress without a URL")
        return url


def watch(client: CriClient, request: WatchRequest, sink: Sink, pace: Pace) -> None:
    """Watch pulls until none is left, or without end if ``pace.follow``.

    Raises:
        PullFailed: at least one pull failed; the message has the first reason.
        Interrupted: Ctrl-C.
        NotFound: no such pod or container.
        Unimplemented: neither source is there.
    """
    try:
        outcome = _watch(client, request, sink, pace)
    except KeyboardInterrupt:
        raise Interrupted("stopped watching; the pulls go on") from None
    _conclude(outcome, request, sink)


def _watch(client: CriClient, request: WatchRequest, sink: Sink, pace: Pace) -> WatchOutcome:
    target = WatchTarget(client, request)
    if target.pod is None and target.container is None:
        return _watch_containerd(client, request, target, sink, pace)
    if request.container and target.container is None:
        name = request.container
        sink.note(f'container "{name}" does not exist yet: showing the pulls of the whole pod')
    if request.source != "containerd":
        tracker = ImageTracker(request.image)
        try:
            return watch_stream(
                target.open_stream, tracker, sink, timeout_s=client.timeout_s, pace=pace
            )
        except PycrictlError as exc:
            if not _is_unsupported(exc):
                raise
            if request.source == "cri":
                raise Unimplemented(
                    f"the runtime does not offer ImagePullProgress: {exc.message}"
                ) from None
            log.debug("ImagePullProgress is not offered (%s); asking containerd", exc.message)
    return _watch_containerd(client, request, target, sink, pace)


def _watch_containerd(
    client: CriClient, request: WatchRequest, target: WatchTarget, sink: Sink, pace: Pace
) -> WatchOutcome:
    image = request.image
    if not image and target.container is not None:
        image = target.container.image.user_specified_image or target.container.image.image
        name = quote_reference(image)
        sink.note(f"containerd does not say whom a pull is for: showing pulls of {name}")
    elif not image and target.pod is not None:
        sink.note("containerd does not say which pod a pull is for: showing every pull on the node")
    watcher, settings = open_watcher(client)
    return watch_content(watcher, settings, ImageTracker(image), sink, pace=pace)


def _is_unsupported(exc: PycrictlError) -> bool:
    """Return whether a source does not exist, so that the next is tried (KEP-5334)."""
    is_refused = isinstance(exc, UpgradeRefused) and exc.status in _NOT_OFFERED
    return isinstance(exc, Unimplemented) or is_refused


def _conclude(outcome: WatchOutcome, request: WatchRequest, sink: Sink) -> None:
    if not outcome.seen:
        whose = f' for "{request.pod}"' if request.pod else ""
        sink.note(f"no image is being pulled{whose}")
    if outcome.failures:
        image, reason = outcome.failures[0]
        more = f" (and {len(outcome.failures) - 1} more)" if len(outcome.failures) > 1 else ""
        name = f" of {quote_reference(image)}" if image else ""
        raise PullFailed(f"the pull{name} failed: {reason}{more}")
