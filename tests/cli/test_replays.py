"""Replays of recorded lists, sessions and changes; ``test_as_crictl`` runs all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captures import capture as recording
from tests.captures.calls import calls_of, expected, made, recorded_calls
from tests.captures.fixtures import utc
from tests.fakecri import FakeServer
from tests.support.replays import assert_same_text, replay_change, replay_list

__all__ = ["utc"]

# Commands that answer with data


UNDER_BOTH_NAMES = (
    "f-ps-all", "f-ps-verbose", "f-pods", "pods-json", "f-images", "f-images-yaml",
    *(
        "f-stats-all",
        "f-statsp",
        "inspect-two",
        "inspect-template-empty",
        "f-inspectp-table",
        "inspecti-yaml",
    ),
    "imagefsinfo-table", "f-info-quiet", "f-metricsp", "f-runtime-config", "f-events-json",
)  # fmt: skip


@pytest.mark.parametrize("name", UNDER_BOTH_NAMES)
def test_same_output_under_the_own_name(fake: FakeServer, name: str, tmp_path: Path) -> None:
    run = replay_list(fake, recording(name), tmp_path)
    assert run.code == recording(name).rc, run.stderr
    assert_same_text(run.stdout, recording(name))


# Streams, except those with signals


# Commands that change state


@pytest.mark.parametrize("name", ["f-stop", "f-stop-all", "f-update-hex"])
def test_sequence_is_kept(fake: FakeServer, name: str, tmp_path: Path) -> None:
    run = replay_change(fake, recording(name), tmp_path)
    assert run.stdout == recording(name).output
    assert made(calls_of(fake)) == expected(recorded_calls(recording(name)))
