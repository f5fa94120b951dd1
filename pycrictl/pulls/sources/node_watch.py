"""``image-pull-progress``: which pulls to watch, through which source, and with which outcome.

A byte count goes from a runtime to a reader in the order below, and never back. A layer has four
forms:

1. *What a runtime says.* containerd grows a file in its content store; ``content_watcher``
   polls the leases that running pulls hold, unfinished blobs (``Ingest``) and snapshots. CRI-O has
   no API for this; ``crio.watcher`` reads the files that its process has open.
2. *A source's own layer*, with what only this source needs: ``Layer`` (``layers``) or
   ``FileLayer`` (``crio.files``). ``pull_names`` finds the image and the pod, ``failures`` the
   reason of a failure.
3. *``LayerState``*, a part of the ``PullState`` of its image (``pulls.state``), which a source's
   ``poll`` returns. Whoever polls hands it to a ``Tracker`` (``pulls.tracker``), whose ``Course``
   adds what depends on time: rates, the time left, stalls. Displays (``show.displays``), ``why``,
   ``top``, the proxy's line, history, metrics and Events, and the agent take it as it is.
4. *JSON*, for a reader in another process: a message of the progress stream or an ImagePull object.
   ``pulls.messages`` alone writes and reads it. ``stream_watch`` follows a stream, and
   reconnects after interruptions; ``cluster_watch`` follows a cluster. Both hand the pulls to a
   ``Tracker`` again. Sums are passed on unchanged, so every reader shows the same.

With a proxy, the same watcher feeds ``proxy.pulls.layer_poller`` once for all clients;
``proxy.pulls.progress_streams`` adds the line and the failures, which only the proxy knows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import (
    ConnectError,
    DeadlineExceeded,
    Invalid,
    NotFound,
    PycrictlError,
    RemoteProtocolError,
    Unavailable,
    Unimplemented,
)
from pycrictl.base.units import quote
from pycrictl.pulls.messages import WHOLE_NODE, pulls_in_line
from pycrictl.pulls.reference import Match, match
from pycrictl.pulls.registries.mirrors import access_of
from pycrictl.pulls.registries.registry_client import ManifestRequest, find_digest
from pycrictl.pulls.sources.content_watcher import ContentWatcher
from pycrictl.pulls.sources.crio.watcher import CrioWatcher, open_crio
from pycrictl.pulls.sources.endings import (
    SETTLE_S,
    Endings,
    Outcome,
    Pace,
    PollResult,
    Sink,
    conclude,
    failures_in,
    stopped,
)
from pycrictl.pulls.sources.failures import Causes, cause
from pycrictl.pulls.sources.pull_names import ImageOwners
from pycrictl.pulls.sources.stream_watch import Unreachable, watch_stream
from pycrictl.pulls.state import PullState
from pycrictl.pulls.tracker import Tracker
from pycrictl.runtime.containerd.daemon import settings_of
from pycrictl.runtime.containerd.grpc_client import ContainerdClient
from pycrictl.runtime.cri.calls.redact import quote_reference
from pycrictl.runtime.cri.lists.lookup import Lookup, find_in_pod
from pycrictl.streams.target import Target, beside, parse_url

if TYPE_CHECKING:
    from pycrictl.kube.pods import Pod
    from pycrictl.node.journal import JournalLine
    from pycrictl.pulls.registries.credentials import Keyring
    from pycrictl.runtime.cri.calls.client import CriClient

log = logging.getLogger("pycrictl.progress")


def open_stream(client: CriClient, pod_id: str = WHOLE_NODE, container_id: str = "") -> Target:
    """Return where a runtime streams the progress of a pod's pulls, or of the whole node's."""
    message = cri_pb2.ImagePullProgressRequest(pod_sandbox_id=pod_id, container_id=container_id)
    url: str = client.call("ImagePullProgress", message).url
    if not url:
        raise RemoteProtocolError("the runtime answered ImagePullProgress without a URL")
    return beside(parse_url(url), client.path)


class PodsOfNode(Protocol):
    def pods(self) -> Sequence[Pod]: ...

    def find(self, namespace: str, name: str, uid: str = "") -> Pod | None: ...


@dataclass(eq=False, kw_only=True)
class NodeWatch:
    """A watch of the pulls of a pod, of a container, or of the whole node.

    Attributes:
        pod, container: what to watch, as the user names it; empty for all.
        proxy: a client of the proxy in front of the runtime; None if none is found.
        pods: what the API server knows of the node's pods; None if it is not asked.
    """

    client: CriClient
    sink: Sink
    pace: Pace
    pod: str = ""
    container: str = ""
    proxy: CriClient | None = None
    pods: PodsOfNode | None = None
    read_journal: Callable[[float], Sequence[JournalLine]] | None = None
    keyring: Keyring | None = None

    def run(self) -> None:
        """Watch until no pull is left; raise ``PullFailed`` with the first reason."""
        try:
            outcome = self._run()
        except KeyboardInterrupt:
            raise stopped() from None
        conclude(outcome, self.pod, self.sink)

    def _run(self) -> Outcome:
        self._sandbox = Lookup(self.client).find_pod(self.pod) if self.pod else None
        self._created = self._find_container()
        images: list[str] = []
        if self.container and self._created is None:
            if self._sandbox is None:
                raise NotFound(
                    f'no container "{self.container}"',
                    hint="name its pod as well if the container does not exist yet",
                )
            images = self._images_of_container()
            shown = ", ".join(map(quote_reference, images)) or "the whole pod"
            name = quote(self.container)
            self.sink.note(f"container {name} does not exist yet: showing the pulls of {shown}")
        tracker, timeout_s = Tracker(images or None), self.client.timeout_s
        try:
            return watch_stream(
                self._open_stream, tracker, self.sink, timeout_s=timeout_s, pace=self.pace
            )
        except Unreachable as exc:
            self.sink.note(f"{exc.message}; watching the runtime itself instead")
        except PycrictlError as exc:
            # A runtime that does not support WHOLE_NODE takes it for the ID of a pod.
            is_named = self._sandbox is not None or self._created is not None
            kinds = (Unimplemented,) if is_named else (Unimplemented, Invalid, NotFound)
            if not isinstance(exc, kinds):
                raise
            log.debug("ImagePullProgress is not offered (%s); looking inside", exc.message)
        return self._watch_inside()

    def _open_stream(self) -> Target:
        self._created = self._created or self._find_container()
        container_id = self._created.id if self._created is not None else ""
        pod_id = "" if container_id else WHOLE_NODE
        pod_id = self._sandbox.id if self._sandbox is not None else pod_id
        # The client may be connected to a proxy whose admin socket is not at the usual path.
        return open_stream(self.proxy or self.client, pod_id, container_id)

    def _watch_inside(self) -> Outcome:
        images = self._images()
        pods = self.pods.pods if self.pods is not None else tuple
        owners = ImageOwners(pods, names_pods=images is None) if self.pods else None
        watcher = open_watcher(self.client, owners, keyring=self.keyring)
        if images is None and (self._created or self._sandbox):
            is_crio = isinstance(watcher, CrioWatcher)
            shown = "every pull on the node" + ("; pycrictl proxy can tell" if is_crio else "")
            if self._created is not None:
                image = self._created.image.user_specified_image or self._created.image.image
                images, shown = [image], f"pulls of {quote_reference(image)}"
            runtime = "CRI-O" if is_crio else "containerd"
            self.sink.note(f"{runtime} does not say which pod a pull is for: showing {shown}")
        causes = None
        if self.read_journal is not None:
            causes = Causes(self.read_journal, pods)
        return watch_runtime(watcher, Tracker(images), self.sink, self.pace, causes)

    def _find_container(self) -> cri_pb2.Container | None:
        pod_id = self._sandbox.id if self._sandbox is not None else ""
        return find_in_pod(self.client, pod_id, self.container) if self.container else None

    def _images(self) -> list[str] | None:
        """Return the images that may be pulled for the pod; None if it is not known."""
        if (pod := self._spec()) is None:
            return None
        own = self._images_of_container()
        return own if own or self._created is not None else [image.image for image in pod.images]

    def _images_of_container(self) -> list[str]:
        pod, name = self._spec(), self.container.rpartition("/")[2]
        if self._created is not None:
            name = self._created.metadata.name
        images = pod.images if pod is not None and name else ()
        return [image.image for image in images if image.container == name]

    def _spec(self) -> Pod | None:
        if self.pods is None or self._sandbox is None:
            return None
        metadata = self._sandbox.metadata
        return self.pods.find(metadata.namespace, metadata.name, metadata.uid)


def watch_runtime(
    watcher: ContentWatcher | CrioWatcher,
    tracker: Tracker,
    sink: Sink,
    pace: Pace,
    causes: Causes | None,
) -> Outcome:
    """Poll a runtime until no wanted pull runs any more, or without end."""
    quiet_since: float | None = None
    endings = Endings(tracker, sink)
    has_seen = False
    while True:
        result, now = _poll(watcher, sink, pace), time.monotonic()
        if causes is not None:
            result = causes.add(result, now)
        result.apply_to(tracker, now)
        view = tracker.view(now, time.time())
        running = tracker.wanted(result.active)
        sink.show(view if view.pulls else replace(view, awaited=running))
        for pull in result.ended:
            if not pull.image and pull.error:
                sink.note(pull.error)
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
            return failures_in(view) if has_seen or view.pulls else None
        time.sleep(pace.interval_s)


def _poll(watcher: ContentWatcher | CrioWatcher, sink: Sink, pace: Pace) -> PollResult:
    has_noted = False
    for pause_s in pace.reopen_pauses_s:
        try:
            return watcher.poll(time.monotonic())
        except (Unavailable, ConnectError, DeadlineExceeded) as exc:
            if not has_noted:
                sink.note(f"{exc.message}; waiting for the runtime")
                has_noted = True
            time.sleep(pause_s)
    return watcher.poll(time.monotonic())


# What a runtime is watched by


def open_watcher(
    client: CriClient,
    owners: ImageOwners | None = None,
    *,
    keyring: Keyring | None = None,
) -> ContentWatcher | CrioWatcher:
    """Return a watcher for containerd or CRI-O; raise ``Unimplemented`` for other runtimes."""
    native = ContainerdClient(client.path, timeout_s=client.timeout_s)
    try:
        version = native.version()
    except Unimplemented:
        crio = open_crio(client, owners, keyring=keyring)
        if crio is None:
            raise
        return crio

    access = cache(partial(access_of, client.endpoint, "containerd", version))

    def find_in_registry(reference: str) -> str | None:
        return find_digest(ManifestRequest(reference, access=access(), keyring=keyring))

    settings = settings_of(native)
    # containerd 1.x opens a layer only once its pull's limit admits it, so none waits unseen.
    is_first = version.removeprefix("v").startswith("1.")
    return ContentWatcher(
        native,
        snapshotter=settings.snapshotter,
        max_concurrent_downloads=0 if is_first else settings.max_concurrent_downloads,
        owners=owners,
        find_digest=find_in_registry,
    )


# The pulls for a pod, as a diagnosis needs them


class Pulls(NamedTuple):
    """What is known of the pulls for a pod.

    Attributes:
        own: the pod's pulls, by image.
        node: the node's pulls, by image: a pull for another pod provides the image, too.
        failed: the errors of the pod's last pulls, by image.
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


class RuntimePulls:
    """The running pulls of containerd or CRI-O, watched on the node without a proxy.

    Attributes:
        is_measured: all rates were known at the last poll.
    """

    def __init__(self, client: CriClient, pods: PodsOfNode | None) -> None:
        owners = ImageOwners(pods.pods) if pods is not None else None
        self._watcher = open_watcher(client, owners)
        self._tracker = Tracker()
        self.is_measured = False

    def poll(self, references: Sequence[str]) -> dict[str, PullState]:
        """Return the pulls by the reference that each is for, or else by name."""
        now = time.monotonic()
        result = self._watcher.poll(now)
        result.apply_to(self._tracker, now)
        view = self._tracker.view(now, time.time())
        shown = [view.pulls.get(pull.image, pull) for pull in result.active]
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
    client: CriClient,
    references: Sequence[str],
    pods: PodsOfNode | None,
    *,
    most_s: float = 2.0,
    pause_s: float = 0.25,
) -> dict[str, PullState]:
    """Return the running pulls of a runtime, watched until their rates are known."""
    pulls = RuntimePulls(client, pods)
    end_at = time.monotonic() + most_s
    while True:
        running = pulls.poll(references)
        if pulls.is_measured or time.monotonic() >= end_at:
            return running
        time.sleep(pause_s)
