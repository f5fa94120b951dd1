"""``image-pull-progress``: which pulls to watch, through which source, and with which outcome.

The way of a byte count, from a runtime to a reader, goes down and never back. A layer has four
forms:

1. *What a runtime says.* containerd grows a file in its content store; ``content_watcher``
   polls the leases that running pulls hold, unfinished blobs and snapshots. CRI-O has no API for
   this; ``crio.watcher`` reads the files that its process has open.
2. *A source's own layer*, with what only this source needs: ``Layer`` (``layers``) or
   ``FileLayer`` (``crio.file_layers``). ``pull_names`` finds the image and the pod,
   ``failures`` the reason of a failure.
3. *``LayerState``*, a part of the ``PullState`` of its image (``pulls.state``). Sources hand them
   to a ``Tracker`` (``pulls.tracker``), whose ``Course`` adds what time tells: rates, the time
   left, stalls. Displays (``show.displays``), ``why``, ``top``, the proxy's line, history, metrics
   and Events, and the agent take it as it is.
4. *JSON*, for a reader in another process: a message of the progress stream or an ImagePull object.
   ``pulls.messages`` alone writes and reads it. ``stream_watch`` follows a stream, and
   reconnects after interruptions; ``cluster_watch`` follows a cluster. Both hand the pulls to a
   ``Tracker`` again. Sums are handed on as they are, so every reader shows the same.

With a proxy, the same watcher feeds ``proxy.pulls.layer_poller`` once for all clients;
``proxy.pulls.progress_streams`` adds the line and the failures, which only the proxy knows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import (
    ConnectError,
    DeadlineExceeded,
    Interrupted,
    Invalid,
    NotFound,
    PycrictlError,
    RemoteProtocolError,
    Unavailable,
    Unimplemented,
    UpgradeRefused,
)
from pycrictl.base.units import quote
from pycrictl.pulls.messages import WHOLE_NODE
from pycrictl.pulls.reference import may_be
from pycrictl.pulls.registries.access import access_of
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
    conclude,
    failures_in,
)
from pycrictl.pulls.sources.failures import Causes, Failures
from pycrictl.pulls.sources.pull_names import ImageOwners
from pycrictl.pulls.sources.stream_watch import Unreachable, watch_stream
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

_NOT_OFFERED: Final = (404, 405)


def open_stream(client: CriClient, pod_id: str = WHOLE_NODE, container_id: str = "") -> Target:
    """Return where a runtime streams the progress of a pod's pulls, or of the whole node's."""
    message = cri_pb2.ImagePullProgressRequest(pod_sandbox_id=pod_id, container_id=container_id)
    url: str = client.call("ImagePullProgress", message).url
    if not url:
        raise RemoteProtocolError("the runtime answered ImagePullProgress without a URL")
    return beside(parse_url(url), client.path)


@dataclass(frozen=True, slots=True)
class WatchRequest:
    pod: str = ""
    container: str = ""
    image: str = ""
    wants_manifests: bool = True


class PodsOfNode(Protocol):
    def pods(self) -> Sequence[Pod]: ...

    def find(self, namespace: str, name: str, uid: str = "") -> Pod | None: ...


class Knowledge(NamedTuple):
    proxy: CriClient | None = None
    pods: PodsOfNode | None = None
    read_journal: Callable[[float], Sequence[JournalLine]] | None = None
    keyring: Keyring | None = None


NOTHING: Final = Knowledge()


class _WatchTarget:
    """A pod, a container of it, or the whole node."""

    def __init__(self, client: CriClient, request: WatchRequest, pods: PodsOfNode | None) -> None:
        self._client = client
        self._pods = pods
        self._name = request.container
        self.pod = Lookup(client).find_pod(request.pod) if request.pod else None
        self.container: cri_pb2.Container | None = None
        self._look_for_container()
        if self._name and self.container is None and self.pod is None:
            raise NotFound(
                f'no container "{self._name}"',
                hint="name its pod as well if the container does not exist yet",
            )

    def open_stream(self, asked: CriClient) -> Target:
        self._look_for_container()
        container_id = self.container.id if self.container is not None else ""
        pod_id = self.pod.id if self.pod is not None else "" if container_id else WHOLE_NODE
        return open_stream(asked, pod_id, container_id)

    def images(self) -> list[str] | None:
        """Return the images that may be pulled for the target; None if its pod is not known."""
        pod = self._spec()
        if pod is None:
            return None
        own = self.images_of_container()
        return own if own or self.container is not None else [one.image for one in pod.images]

    def images_of_container(self) -> list[str]:
        pod, name = self._spec(), self._name.rpartition("/")[2]
        if self.container is not None:
            name = self.container.metadata.name
        images = pod.images if pod is not None and name else ()
        return [one.image for one in images if one.container == name]

    def _spec(self) -> Pod | None:
        if self._pods is None or self.pod is None:
            return None
        metadata = self.pod.metadata
        return self._pods.find(metadata.namespace, metadata.name, metadata.uid)

    def _look_for_container(self) -> None:
        if self._name and self.container is None:
            pod_id = self.pod.id if self.pod is not None else ""
            self.container = find_in_pod(self._client, pod_id, self._name)


def watch(
    client: CriClient, request: WatchRequest, sink: Sink, pace: Pace, knowledge: Knowledge = NOTHING
) -> None:
    """Watch pulls until none is left; raise ``PullFailed`` with the reason of the first failure."""
    try:
        outcome = _watch(client, request, sink, pace, knowledge)
    except KeyboardInterrupt:
        raise Interrupted("stopped watching; the pulls go on") from None
    conclude(outcome, request.pod, sink)


def _watch(
    client: CriClient, request: WatchRequest, sink: Sink, pace: Pace, knowledge: Knowledge
) -> WatchOutcome:
    target = _WatchTarget(client, request, knowledge.pods)
    own: list[str] = []
    if request.container and target.container is None:
        own = target.images_of_container()
        shown = ", ".join(map(quote_reference, own)) or "the whole pod"
        name = quote(request.container)
        sink.note(f"container {name} does not exist yet: showing the pulls of {shown}")
    tracker = Tracker(_both(request.image, own or None))
    # The client may be connected to a proxy whose admin socket is not at the usual path.
    open_url = partial(target.open_stream, knowledge.proxy or client)
    try:
        return watch_stream(open_url, tracker, sink, timeout_s=client.timeout_s, pace=pace)
    except Unreachable as exc:
        sink.note(f"{exc.message}; looking inside the runtime")
    except PycrictlError as exc:
        is_refused = isinstance(exc, UpgradeRefused) and exc.status in _NOT_OFFERED
        # A runtime that does not support WHOLE_NODE takes it for the ID of a pod.
        is_named = target.pod is not None or target.container is not None
        kinds = (Unimplemented,) if is_named else (Unimplemented, Invalid, NotFound)
        if not is_refused and not isinstance(exc, kinds):
            raise
        log.debug("ImagePullProgress is not offered (%s); looking inside", exc.message)
    return _watch_inside(client, request, target, sink, pace, knowledge)


def _watch_inside(
    client: CriClient,
    request: WatchRequest,
    target: _WatchTarget,
    sink: Sink,
    pace: Pace,
    knowledge: Knowledge,
) -> WatchOutcome:
    image, references = request.image, target.images()
    pods = knowledge.pods.pods if knowledge.pods is not None else tuple
    owners = ImageOwners(pods, names_pods=references is None) if knowledge.pods else None
    watcher = open_watcher(
        client, owners, wants_manifests=request.wants_manifests, keyring=knowledge.keyring
    )
    if references is None and not image and (target.container or target.pod):
        is_crio = isinstance(watcher, CrioWatcher)
        shown = "every pull on the node" + ("; pycrictl proxy knows" if is_crio else "")
        if target.container is not None:
            image = target.container.image.user_specified_image or target.container.image.image
            shown = f"pulls of {quote_reference(image)}"
        runtime = "CRI-O" if is_crio else "containerd"
        sink.note(f"{runtime} does not say which pod a pull is for: showing {shown}")
    causes = None
    if knowledge.read_journal is not None:
        causes = Causes(Failures(knowledge.read_journal, pods))
    return watch_runtime(watcher, Tracker(_both(image, references)), sink, pace, causes)


def _both(image: str, references: Sequence[str] | None) -> Sequence[str] | None:
    """Return those of the references that may be ``image``, if it is given; None for all images."""
    if not image or references is None:
        return [image] if image else references
    return [one for one in references if may_be(one, image) or may_be(image, one)]


def watch_runtime(
    watcher: ContentWatcher | CrioWatcher,
    tracker: Tracker,
    sink: Sink,
    pace: Pace,
    causes: Causes | None,
) -> WatchOutcome:
    """Poll a runtime until no wanted pull runs any more, or without end."""
    quiet_since: float | None = None
    endings = Endings(tracker, sink)
    has_seen = False
    while True:
        result = _poll(watcher, tracker, sink)
        now = time.monotonic()
        if causes is not None:
            result = causes.add(result, tracker, now)
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
            return WatchOutcome(seen=has_seen or bool(view.pulls), failures=failures_in(view))
        time.sleep(pace.interval_s)


def _poll(watcher: ContentWatcher | CrioWatcher, tracker: Tracker, sink: Sink) -> PollResult:
    has_noted = False
    for pause_s in REOPEN_PAUSES_S:
        try:
            return watcher.poll(tracker, time.monotonic())
        except (Unavailable, ConnectError, DeadlineExceeded) as exc:
            if not has_noted:
                sink.note(f"{exc.message}; waiting for it")
                has_noted = True
            time.sleep(pause_s)
    return watcher.poll(tracker, time.monotonic())


# What a runtime is watched by


def open_watcher(
    client: CriClient,
    owners: ImageOwners | None = None,
    *,
    wants_manifests: bool = True,
    keyring: Keyring | None = None,
) -> ContentWatcher | CrioWatcher:
    """Return a watcher for containerd or CRI-O; raise ``Unimplemented`` for other runtimes."""
    native = ContainerdClient(client.path, timeout_s=client.timeout_s)
    try:
        version = native.version()
    except Unimplemented:
        crio = open_crio(client, owners, wants_manifests=wants_manifests, keyring=keyring)
        if crio is None:
            raise
        return crio
    settings = settings_of(native)
    return ContentWatcher(
        native,
        snapshotter=settings.snapshotter,
        max_concurrent_downloads=settings.max_concurrent_downloads,
        owners=owners,
        find_digest=_finder_of_digests(client.endpoint, version, keyring)
        if wants_manifests
        else None,
    )


def _finder_of_digests(
    endpoint: str, version: str, keyring: Keyring | None
) -> Callable[[str], str | None]:
    access: list[RegistryAccess] = []

    def find(reference: str) -> str | None:
        if not access:  # found out only once it is needed
            access.append(access_of(endpoint, "containerd", version))
        return find_digest(ManifestRequest(reference, access=access[0], keyring=keyring))

    return find
