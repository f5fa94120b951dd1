"""The progress of one pod's pulls as lines (KEP-5334), from this node or forwarded from another."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from aiohttp import web

from pycrictl.base.errors import NotFound, PycrictlError, Unimplemented
from pycrictl.base.foreign import parsed
from pycrictl.base.units import escape
from pycrictl.cluster.agent.api.names import DEBUGGING_OFF, Refusal, pod_not_found
from pycrictl.cluster.agent.node_pulls import NodePulls
from pycrictl.cluster.agent.objects import needs_of, pulls_of, wanted
from pycrictl.cluster.agent.peers import Peers
from pycrictl.kube.pods import Pod
from pycrictl.pulls.messages import MessageWriter

PLAIN_S: Final = 50.0
"""How long a stream that is not a watch lasts: the API server cuts it after 60 s."""

LONGEST_S: Final = 4 * 3600.0
PACE_S: Final = 0.25
HEARTBEAT_S: Final = 10.0
SETTLE_S: Final = 3.0
BEGIN_S: Final = 10.0
"""How long a pod that waits for an image may take until its first pull begins."""

SEND_S: Final = 30.0
NDJSON: Final = "application/x-ndjson"


class ProgressStreams:
    def __init__(self, own: NodePulls, peers: Peers, *, is_off: bool = False) -> None:
        self.open = 0
        self.is_off = is_off
        self._own = own
        self._peers = peers

    async def serve(
        self, request: web.BaseRequest, pod: Pod, container: str, *, is_watch: bool, timeout_s: int
    ) -> web.StreamResponse:
        """Answer with the stream of a pod on any node."""
        if not wanted(pod, container) and container:
            raise Refusal(400, f"container {container} is not valid for pod {pod.name}")
        if not pod.node:
            raise Refusal(400, f"pod {pod.name} does not have a host assigned", kind="pods")
        longest_s = LONGEST_S if is_watch else PLAIN_S
        limit_s = float(min(timeout_s or longest_s, longest_s))
        if pod.node == self._own.node:
            return await self.serve_own(request, pod, container, limit_s)
        path = f"/node/v1alpha1/pods/{pod.namespace}/{pod.name}/imagepullprogress"
        query = {"timeoutSeconds": str(int(limit_s))}
        query |= {"container": container} if container else {}
        lines = _forwarded(self._peers.lines(pod.node, pod.host_ip, path, query))
        try:
            return await self._send(request, lines, limit_s)
        except NotFound:
            raise pod_not_found(pod.name) from None
        except Unimplemented as exc:
            raise Refusal(405, exc.message) from None
        except PycrictlError as exc:
            raise Refusal(
                503, f"node {pod.node} did not answer: {escape(exc.message)}", retry_after_s=2
            ) from None

    async def serve_own(
        self, request: web.BaseRequest, pod: Pod, container: str, limit_s: float
    ) -> web.StreamResponse:
        if self.is_off:
            raise Refusal(405, DEBUGGING_OFF)
        pulls, _ = await self._own.ask()
        if not pulls and self._own.error:
            raise Refusal(503, f"the pulls of the node are unknown: {self._own.error}")
        return await self._send(request, self._follow(pod, container, limit_s), limit_s)

    async def find(self, namespace: str, name: str) -> Pod:
        """Return a pod of this node."""
        await self._own.ask()
        if (pod := self._own.find(namespace, name)) is None:
            raise pod_not_found(name)
        return pod

    async def _send(
        self, request: web.BaseRequest, lines: AsyncGenerator[bytes, None], limit_s: float
    ) -> web.StreamResponse:
        """Send whole lines; the status is sent with the first line, or at the end without one."""
        response = web.StreamResponse(headers={"Content-Type": NDJSON, "Cache-Control": "no-cache"})
        response.enable_chunked_encoding()
        ends_at = time.monotonic() + limit_s
        self.open += 1
        try:
            while True:
                try:
                    async with asyncio.timeout(max(ends_at - time.monotonic(), 0.0)):
                        line = await anext(lines, None)
                except TimeoutError:
                    break
                except PycrictlError:
                    if not response.prepared:
                        raise
                    # The lines already sent stay valid; the client reconnects.
                    break
                if line is None:
                    break
                if not response.prepared:
                    await response.prepare(request)
                async with asyncio.timeout(SEND_S):
                    await response.write(line + b"\n")
            if not response.prepared:
                await response.prepare(request)
            await response.write_eof()
        finally:
            self.open -= 1
            await lines.aclose()
        return response

    async def _follow(
        self, pod: Pod, container: str, limit_s: float
    ) -> AsyncGenerator[bytes, None]:
        """Iterate over the records of a pod of this node until its pulls are over."""
        writer = MessageWriter()
        begun_at = sent_at = quiet_at = time.monotonic()
        has_pulled, since_s = False, time.time()
        while time.monotonic() - begun_at < limit_s:
            pulls, _ = await self._own.ask()
            current = self._own.find(pod.namespace, pod.name)
            if current is None and time.monotonic() - begun_at < SETTLE_S:
                current = pod  # it may be newer than the list of the node's pods
            if current is None or current.uid != pod.uid:
                return
            needs = wanted(current, container)
            shown, runs = pulls_of(needs, pulls, since_s)
            now = time.monotonic()
            messages = writer.changes(shown)
            if not messages and shown and now - sent_at >= HEARTBEAT_S:
                messages = [writer.last]
            for message in messages:
                sent_at = now
                yield message.encode()
            has_pulled |= runs
            if runs:
                quiet_at = now
            is_open = any(need.is_open for need in needs_of(current))
            settle_s = BEGIN_S if is_open and not has_pulled and not shown else SETTLE_S
            if not runs and (not is_open or now - quiet_at >= settle_s):
                return
            await asyncio.sleep(PACE_S)
            await self._own.changes.wait(1.0)


async def _forwarded(lines: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Forward the objects among another agent's lines, encoded anew."""
    async with aclosing(lines):
        async for line in lines:
            if record := parsed(line):
                yield json.dumps(record).encode()
