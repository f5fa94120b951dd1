"""``ImagePullProgress`` (KEP-5334), answered by the proxy: whose pulls, and what a stream says.

A stream is fed from what the proxy knows of the pulls that pass through it (``board``) and, on
containerd, of their layers (``layers``). Each watcher remembers what it was sent and is sent what
is different, so that a slow one gets fewer and newer records and costs no more than a fast one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from google.protobuf.message import DecodeError

from pycrictl._proto import cri_pb2
from pycrictl.errors import Exhausted
from pycrictl.progress.reference import is_same_image
from pycrictl.progress.tracker import Item, Phase
from pycrictl.proxy.pulls.board import Board, Standing, State
from pycrictl.proxy.pulls.failures import ATTEMPT_GAP_S
from pycrictl.proxy.pulls.lookup import Lookup, Refused, Target
from pycrictl.proxy.pulls.poller import LayerPoller
from pycrictl.proxy.relay.calls import Answer, Request
from pycrictl.proxy.relay.server import Peer
from pycrictl.proxy.serve.tokens import Tokens
from pycrictl.wire.codes import INVALID_ARGUMENT, RESOURCE_EXHAUSTED
from pycrictl.wire.progress import MAX_TEXT, Report

IMAGE_PULL_PROGRESS: Final = "/runtime.v1.RuntimeService/ImagePullProgress"

HEARTBEAT_S: Final = 10.0
"""The longest silence of a stream: then it repeats its last record."""

PACE_S: Final = 0.2
"""The shortest time between two batches of records."""

_SETTLE_S: Final = ATTEMPT_GAP_S
"""How long a new stream waits for a first pull, since the next one of a pod may be on its way."""

_UNSETTLED: Final = (Phase.WAITING, Phase.DOWNLOADING, Phase.EXTRACTING, Phase.FAILED)


class Bell:
    """Wakes everybody who waits for something to happen."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Something happened."""
        self._rung.set()
        self._rung = asyncio.Event()

    async def wait(self, timeout_s: float) -> None:
        """Returns at the next ring, or after so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._rung.wait()


class Progress:
    """Answers ``ImagePullProgress`` and says what the streams behind its URLs say.

    Args:
        lookup: finds pods and containers.
        board: knows the images that pods wait for.
        layers: knows their layers.
        place: of a caller in the line, from 1; 0 if it does not wait.
        bell: rings when anything of that changes.
        tokens: of all streams' URLs.
        url: makes a URL of a token.
    """

    def __init__(
        self,
        lookup: Lookup,
        board: Board,
        layers: LayerPoller,
        *,
        place: Callable[[int], int],
        bell: Bell,
        tokens: Tokens[Any],
        url: Callable[[str], str],
    ) -> None:
        self._lookup = lookup
        self._board = board
        self._layers = layers
        self._place = place
        self._bell = bell
        self._tokens = tokens
        self._url = url
        self._loop = asyncio.get_running_loop()

    async def handle(self, request: Request, peer: Peer) -> Answer:
        """Answers the call with the URL of a stream."""
        try:
            message = cri_pb2.ImagePullProgressRequest.FromString(request.message)
        except DecodeError:
            return Answer(INVALID_ARGUMENT, "pycrictl proxy: the request cannot be read")
        try:
            target = await self._lookup.target(message.pod_sandbox_id, message.container_id)
            token = self._tokens.issue(str(target.pod), target, now=self._loop.time())
        except Refused as refused:
            return refused.answer
        except Exhausted as exc:
            return Answer(RESOURCE_EXHAUSTED, f"pycrictl proxy: {exc.message}")
        response = cri_pb2.ImagePullProgressResponse(url=self._url(token))
        return Answer(response=response.SerializeToString())

    def redeem(self, token: str) -> Target | None:
        """Uses up the token of a URL; None if it is not good."""
        found = self._tokens.redeem(token, now=self._loop.time())
        return found if isinstance(found, Target) else None

    async def follow(self, target: Target) -> AsyncGenerator[list[Report], None]:
        """Batches of records until nothing is left to pull; the first holds all that is known."""
        sent: dict[tuple[str, str], Report] = {}
        last: list[Report] = []
        spoke_at = self._loop.time()
        opened_at = spoke_at
        self._board.watch(target.pod)
        try:
            async with self._layers.watching():
                while True:
                    now = self._loop.time()
                    until = self._board.busy_until(target.pod, now=now)
                    batch = []
                    for report in self.reports(target):
                        if sent.get((report.image, report.layer)) != report:
                            sent[report.image, report.layer] = report
                            batch.append(report)
                    if not batch and last and now - spoke_at >= HEARTBEAT_S:
                        batch = last
                    if batch:
                        yield batch
                        last, spoke_at = batch[-1:], self._loop.time()
                    if until is not None and max(until, opened_at + _SETTLE_S) <= now:
                        return
                    await asyncio.sleep(PACE_S)
                    await self._bell.wait(1.0)
        finally:
            self._board.unwatch(target.pod, now=self._loop.time())

    def reports(self, target: Target) -> list[Report]:
        """What is known now of the pulls that are meant."""
        found: list[Report] = []
        for standing in self._board.standings(target.pod, now=self._loop.time()):
            if not target.image or is_same_image(target.image, standing.reference):
                found += self._of_image(standing)
        return found

    def _of_image(self, standing: Standing) -> list[Report]:
        items = [] if standing.state is State.WAITING else self._layers.items(standing.name)
        layers = [item for item in items if item.layer]
        if not layers:
            return [self._whole(standing)]
        reports = [_of_layer(standing, item) for item in layers]
        if standing.state is State.FAILED and not any(report.error for report in reports):
            # All layers are there, and yet it failed: an error needs an item to be seen.
            reports[-1] = reports[-1]._replace(error=standing.error[:MAX_TEXT], phase=Phase.FAILED)
        return reports

    def _whole(self, standing: Standing) -> Report:
        """An image of which nothing but its state is known."""
        position = self._place(standing.ticket) if standing.ticket else 0
        error = ""
        if standing.state is State.FAILED:
            phase, error = Phase.FAILED, standing.error[:MAX_TEXT]
        elif standing.state is State.DONE:
            phase = Phase.PRESENT if standing.is_present else Phase.DONE
        elif standing.state is State.RUNNING:
            phase = Phase.DOWNLOADING
        else:
            phase = Phase.WAITING
        return Report(
            standing.reference[:MAX_TEXT], "", 0, 0, error, phase, queue_position=position
        )


def _of_layer(standing: Standing, item: Item) -> Report:
    phase, progress, error = item.phase, item.progress, ""
    if standing.state is State.DONE and phase in _UNSETTLED:
        # The runtime has said so; the last look at the layer was before.
        phase, progress = Phase.DONE, item.total
    elif standing.state is State.FAILED and phase in _UNSETTLED:
        phase, error = Phase.FAILED, standing.error[:MAX_TEXT]
    elif phase is Phase.FAILED:  # the layer's attempt; another one may follow
        phase = Phase.DOWNLOADING
    extracted = item.extracted
    if phase is Phase.DONE and item.extracted_total:
        extracted = item.extracted_total
    return Report(
        image=standing.reference[:MAX_TEXT],
        layer=item.layer,
        progress=progress,
        total=item.total,
        error=error,
        phase=phase,
        extracted=extracted,
        extracted_total=item.extracted_total,
    )
