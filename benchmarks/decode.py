"""Decoding a progress stream and tracking it, against ``json.loads`` of the same messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial

from benchmarks.harness import Benchmark, Goal, Measured, interleave, wall_s
from pycrictl.pulls.tracker import Phase, Tracker
from pycrictl.wire.progress import ProgressDecoder, Report, encode_report

ROUNDS = 15
LAYERS = 40
REPORTS_PER_LAYER = 250
LAYER_BYTES = 50_000_000


def _stream(phase: str) -> list[str]:
    """Messages of an image's pull, its layers in turn, each with progress of its own."""
    return [
        encode_report(
            Report(
                image="registry.example/team/application:1.27.3",
                layer=f"sha256:{layer:064x}",
                progress=LAYER_BYTES * step // REPORTS_PER_LAYER,
                total=LAYER_BYTES,
                phase=phase,
            )
        )
        for step in range(REPORTS_PER_LAYER)
        for layer in range(LAYERS)
    ]


def _ours(messages: Sequence[str]) -> None:
    decoder = ProgressDecoder()
    tracker = Tracker()
    for number, message in enumerate(messages):
        report = decoder.receive_message(message)
        assert report is not None
        tracker.apply(report, now=number / 1000)


def _bare(messages: Sequence[str]) -> None:
    for message in messages:
        json.loads(message)


def _compare(phase: str) -> Measured:
    messages = _stream(phase)

    def rate(work: partial[None]) -> float:
        return len(messages) / wall_s(work)

    ours, bare = partial(_ours, messages), partial(_bare, messages)
    return interleave(lambda: rate(ours), lambda: rate(bare), rounds=ROUNDS)


def _show(rate: float) -> str:
    return f"{rate / 1000:.0f} k/s"


BENCHMARKS = (
    Benchmark(
        name="decode",
        what="messages a second, decoded and tracked / by json.loads; the KEP's keys",
        goal=Goal(">=", 0.4),
        show=_show,
        measure=lambda: _compare(""),
    ),
    Benchmark(
        name="decode-phase",
        what="the same for messages with the additional key 'phase'",
        goal=Goal(">=", 0.4),
        show=_show,
        measure=lambda: _compare(Phase.DOWNLOADING),
    ),
)
