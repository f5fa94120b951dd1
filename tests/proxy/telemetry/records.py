"""Made-up records of pulls, and metrics after one event of each kind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from pycrictl.base.servicelog import Log
from pycrictl.copy.service.slots import Slots
from pycrictl.proxy.events import (
    CallEnded,
    CopyEnded,
    Event,
    Events,
    HandedOver,
    HandOverFailed,
    PullRecorded,
    StreamEnded,
    TookOver,
)
from pycrictl.proxy.pulls.pull_calls import CallState, PullCall, PullKey, QueuedPull
from pycrictl.proxy.pulls.queue import PullQueue
from pycrictl.proxy.serve.stream_server import StreamServer, Tokens
from pycrictl.proxy.telemetry.metrics import Metrics
from pycrictl.proxy.telemetry.pages import pages
from pycrictl.pulls.state import LayerState, PullState

_PULLED: dict[str, Any] = {
    "ended": "2023-11-14T22:13:20.000Z",
    "image": "a/b:1",
    "digest": "sha256:12",
    "pod": "default/web",
    "outcome": "pulled",
    "code": "OK",
    "cause": None,
    "waitedSeconds": 2.0,
    "pulledSeconds": 4.0,
    "gotBytes": 8 * 1024**2,
    "reusedBytes": 1024,
    "extractedBytes": 20 * 1024**2,
    "attempts": 1,
    "joined": False,
    "bytesPerSecond": 2 * 1024**2,
}


def record(**changes: Any) -> dict[str, Any]:
    return {**_PULLED, **changes}


PULL = QueuedPull(1, PullKey("a"), takes_slot=True, reference="a")


def ended(how: CallState, code: str, refusal: int | None = None) -> PullCall:
    call = PullCall(1, PULL, None, "a", "a", 0, end=how, ended=5, started=1)
    call.code, call.refusal = code, refusal
    return call


EVENTS: tuple[Event, ...] = (
    PullRecorded(ended(CallState.DONE, "OK"), PullState(layers=(LayerState(total=7),))),
    PullRecorded(ended(CallState.FAILED, "Unknown")),
    PullRecorded(ended(CallState.FAILED, "ResourceExhausted", 8)),
    CopyEnded("to", "c", "p", "/x", 5, "done", 1.0, files=1),
    CopyEnded("from", "c", "p", "/x", 0, "failed", 1.0, error="no"),
    StreamEnded("default/web", "http", "done", 3, 1.0),
    CallEnded("/runtime.v1.RuntimeService/GetContainerEvents", 0),
    CallEnded("/runtime.v1.RuntimeService/Version", 0),
    HandedOver(7, running=1, waiting=2),
    HandOverFailed("why"),
    TookOver(7),
)


def metrics() -> Metrics:
    tokens = Tokens()
    streams = StreamServer(tokens, cast(Any, None), print, Log("pycrictl.proxy.test"))
    copies = cast(Any, SimpleNamespace(running=[], slots=Slots()))
    events, queue = Events(), PullQueue(1)
    queue.refused = 1
    pages(events, cast(Any, None), queue, copies, tokens, streams)
    (counting,) = events.consumers
    assert isinstance(counting, Metrics)
    return counting
