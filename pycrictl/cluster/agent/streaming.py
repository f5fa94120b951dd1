"""The progress of one pod's pulls as lines (KEP-5334), made of its ImagePull objects."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from typing import Final

from aiohttp import web

from pycrictl.base.errors import PycrictlError, Unimplemented
from pycrictl.base.units import escape
from pycrictl.cluster.agent.api.names import DEBUGGING_OFF, Document, Refusal
from pycrictl.cluster.agent.cluster import PULLS, Scope
from pycrictl.cluster.agent.feed import Feed, Feeds, send_lines
from pycrictl.cluster.agent.objects import PullPhase
from pycrictl.cluster.agent.peers import Peers
from pycrictl.kube.pods import Pod
from pycrictl.pulls.messages import MessageWriter, pull_in_status
from pycrictl.pulls.state import LayerState, Phase, PullState

PLAIN_S: Final = 50.0
"""How long a stream that is not a watch lasts: the API server cuts it after 60 s."""

LONGEST_S: Final = 4 * 3600.0
HEARTBEAT_S: Final = 10.0
SETTLE_S: Final = 3.0
BEGIN_S: Final = 10.0
"""How long a pod that waits for an image may take until its first pull begins."""

NDJSON: Final = "application/x-ndjson"

_RUNNING: Final = (PullPhase.QUEUED, PullPhase.PULLING, PullPhase.EXTRACTING)


class ProgressStreams:
    """The open streams; ``is_off``: those of this node's pods are refused, as by its kubelet."""

    def __init__(self, feeds: Feeds, peers: Peers, node: str, *, is_off: bool = False) -> None:
        self.open = 0
        self._feeds = feeds
        self._peers = peers
        self._node = node
        self._is_off = is_off

    def check(self) -> None:
        """Refuse a stream of a pod of this node if they are off."""
        if self._is_off:
            raise Refusal(405, DEBUGGING_OFF)

    async def serve(
        self, request: web.BaseRequest, pod: Pod, container: str, *, is_watch: bool, timeout_s: int
    ) -> web.StreamResponse:
        """Answer with the stream of a pod on any node, until its pulls are over."""
        if container and container not in {image.container for image in pod.images}:
            raise Refusal(400, f"container {container} is not valid for pod {pod.name}")
        if not pod.node:
            raise Refusal(400, f"pod {pod.name} does not have a host assigned", kind="pods")
        await self._check_node(pod)
        longest_s = LONGEST_S if is_watch else PLAIN_S
        ends_at = time.monotonic() + min(timeout_s or longest_s, longest_s)
        feed = self._feeds.get(Scope(pod.namespace, pod.name))
        await feed.refresh()
        objects = _objects(feed, pod, container)
        if objects and all(document["status"].get("unknown") for document in objects):
            raise Refusal(503, objects[0]["status"].get("error", ""), retry_after_s=2)
        response = web.StreamResponse(headers={"Content-Type": NDJSON, "Cache-Control": "no-cache"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        self.open += 1
        try:
            async with feed.watching():
                await _send(response, feed, pod, container, ends_at)
        finally:
            self.open -= 1
        await response.write_eof()
        return response

    async def _check_node(self, pod: Pod) -> None:
        if pod.node == self._node:
            return self.check()
        query = {"namespace": pod.namespace, "pod": pod.name, "stream": "true"}
        try:
            await self._peers.get(pod.node, pod.host_ip, PULLS, query)
        except Unimplemented as exc:
            raise Refusal(405, exc.message) from None
        except PycrictlError as exc:
            why = f"node {pod.node} did not answer: {escape(exc.message)}"
            raise Refusal(503, why, retry_after_s=2) from None


def _objects(feed: Feed, pod: Pod, container: str) -> list[Document]:
    return [
        document
        for document in feed.store.objects()
        if document["spec"].get("podUID") == pod.uid
        and (not container or container in document["spec"].get("containers", ()))
    ]


async def _send(
    response: web.StreamResponse, feed: Feed, pod: Pod, container: str, ends_at: float
) -> None:
    """Send the records of a pod until its pulls are over, and repeat one if there is no news."""
    writer, has_pulled = MessageWriter(), False
    objects = _objects(feed, pod, container)
    present = {document["spec"]["image"] for document in objects if _phase(document).is_whole}
    sent_at = quiet_at = time.monotonic()
    while (now := time.monotonic()) < ends_at:
        objects = _objects(feed, pod, container)
        pulls = pulls_of(objects, present)
        messages = writer.changes(pulls)
        if not messages and pulls and now - sent_at >= HEARTBEAT_S:
            messages = [writer.last]
        if messages:
            sent_at = now
            await send_lines(response, [f"{message}\n".encode() for message in messages])
        if any(_phase(document) in _RUNNING for document in objects):
            has_pulled, quiet_at = True, now
        elif all(_phase(document).is_whole for document in objects):
            return
        elif now - quiet_at >= (SETTLE_S if has_pulled or pulls else BEGIN_S):
            return
        await feed.changes.wait(1.0)


def _phase(document: Document) -> PullPhase:
    """Return where a pull stands; one that its node does not report counts as waiting."""
    status = document["status"]
    return PullPhase.WAITING if status.get("unknown") else PullPhase(status["phase"])


def pulls_of(objects: Iterable[Document], present: Collection[str]) -> list[PullState]:
    """Return the pulls that objects report.

    Args:
        present: the images that were complete when the client began to watch.
    """
    pulls = []
    for document in objects:
        phase, image, status = _phase(document), document["spec"]["image"], document["status"]
        if phase is PullPhase.WAITING:
            continue
        error = status.get("error", "") if phase.has_failed else ""
        if phase.is_whole and (image in present or not status.get("layers")):
            pulls.append(PullState(image=image, layers=(LayerState(phase=Phase.PRESENT),)))
        else:
            pull = PullState(image=image, error=error)
            pulls.append(pull_in_status(status, pull, phase.of_layers))
    return pulls
