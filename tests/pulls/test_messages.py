"""Pulls as messages, and messages from servers that send more or less than ours."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.pulls.messages import MAX_TEXT, NOTHING, MessageReader, MessageWriter
from pycrictl.pulls.state import LayerState, Phase, PullState, Sums
from tests.pulls.tracking import Report

INT64_MAX = 2**63 - 1

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
numbers = st.integers(0, INT64_MAX)
KEYS = [*Report._fields, "starts_in_s", "other"]


def read(message: str | bytes | bytearray) -> PullState | None:
    return MessageReader({}).receive_message(message)


def reason_of(message: str | bytes) -> str:
    """Decode a message that must be bad; return the reason given."""
    reader = MessageReader({})
    assert reader.receive_message(message) is None
    assert reader.first_bad is not None
    return reader.first_bad


# Good messages


@pytest.mark.parametrize(
    ("message", "image", "layer", "progress", "total", "error"),
    [
        ('{"progress":1}', "", "", 1, 0, ""),
        ('{"total":1}', "", "", 0, 1, ""),
        ('{"error":"boom"}', "", "", 0, 0, "boom"),
        ('{"progress":null,"total":null,"image":"a","layer":null}', "a", "", 0, 0, ""),
        ('{"progress":5.0,"total":1e3}', "", "", 5, 1000, ""),
        ('{"image":"a","progress":-5,"total":-1}', "a", "", 0, 0, ""),
        (f'{{"progress":1,"total":{INT64_MAX}}}', "", "", 1, INT64_MAX, ""),
        ('{"progress":1,"total":2,"unknown":[{"x":null}]}', "", "", 1, 2, ""),
        (' \t\r\n{"progress":1,"total":2} \t\r\n', "", "", 1, 2, ""),
        # Lone surrogates are replaced, and can be printed.
        ('{"image":"a\\ud800b","layer":"\\udc00","error":"\\ud83d"}', "a?b", "?", 0, 0, "?"),
        (json.dumps({"error": "x" * (MAX_TEXT + 1)}), "", "", 0, 0, "x" * MAX_TEXT),
    ],
)  # fmt: skip
def test_tolerated(
    message: str, image: str, layer: str, progress: int, total: int, error: str
) -> None:
    reader = MessageReader({})
    pull = reader.receive_message(message)
    assert pull is not None
    (part,) = pull.layers
    assert (pull.image, part.name, part.progress, part.total) == (image, layer, progress, total)
    assert pull.error == error
    assert reader.first_bad is None


@pytest.mark.parametrize("message", [NOTHING, '{"progress":0,"total":0,"image":null,"error":null}'])
def test_a_message_that_there_is_nothing(message: str) -> None:
    assert read(message) == PullState()


@pytest.mark.parametrize(
    "additional",
    [
        {"phase": 3},
        {"queue_position": "first"},
        {"extracted": 1.5},
        {"extracted_total": 2**63},
        {"started": 1e12},
    ],
)
def test_an_additional_key_of_another_type_counts_as_missing(additional: dict[str, Any]) -> None:
    usual = read('{"progress":1,"total":2}')
    assert read(json.dumps({"progress": 1, "total": 2, **additional})) == usual


def told(*reports: Report) -> PullState:
    """Return what a reader knows after these reports on one image."""
    known: dict[str, PullState] = {}
    reader = MessageReader(known)
    for report in reports:
        pull = reader.receive_message(report.message)
        assert pull is not None
        known[pull.image] = pull
    return known[reports[0].image]


@pytest.mark.parametrize(
    ("end", "phases", "progress"),
    [
        (Report("a", phase="done"), [Phase.DONE, Phase.DONE], [9, 9]),
        (Report("a", error="boom"), [Phase.FAILED, Phase.DONE], [4, 9]),
        (Report("a", "", 9, 18), [Phase.DOWNLOADING, Phase.DONE], [4, 9]),
    ],
)
def test_the_end_of_an_image_is_that_of_its_layers(
    end: Report, phases: list[Phase], progress: list[int]
) -> None:
    pull = told(Report("a", "l", 4, 9), Report("a", "m", 9, 9), end)
    assert [layer.phase for layer in pull.layers] == phases
    assert [layer.progress for layer in pull.layers] == progress
    assert pull.error == end.error


@pytest.mark.parametrize(
    ("report", "stalled_s"),
    [
        (Report("a", "l", 4, 9, phase="downloading"), 0.0),
        (Report("a", "l", 4, 9, phase="downloading", idle_s=42.0), 42.0),
        (Report("a", "l", 4, 9, phase="downloading", idle_s=4.0), 0.0),
    ],
)
def test_a_server_that_names_phases_knows_what_has_stalled(
    report: Report, stalled_s: float
) -> None:
    (layer,) = told(report).layers
    assert layer.stalled_s == stalled_s
    assert replace(layer, idle_s=1000.0).stalled_s == (1000.0 if stalled_s else 0.0)


# Bad messages


@pytest.mark.parametrize(
    "message",
    [
        "nonsense",
        '{"progress":1}}',
        "{}",
        '{"image":"a","layer":"b"}',
        '{"error":{}}',
        '{"progress":1,"total":"2"}',
        '{"progress":1.5}',
        '{"progress":1e999}',
        '{"progress":9223372036854775808}',
        '{"total":-9223372036854775809}',
        '{"image":"a\nb","progress":1}',
        '{"progress":' + "9" * 5000 + "}",
        "[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_bad(message: str | bytes) -> None:
    assert reason_of(message).startswith("no progress in it: ")


def test_what_is_kept_of_a_bad_message_is_short_and_cannot_steer_a_terminal() -> None:
    kept = reason_of("\x1b[2J\x9b31m\u202e" + "x" * 1000)
    assert kept.isprintable()
    assert len(kept) < 200


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS), children, max_size=3)
    ),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(KEYS), json_values))
def test_a_state_always_has_the_right_types_and_ranges(fields: dict[str, Any]) -> None:
    reader = MessageReader({})
    pull = reader.receive_message(json.dumps(fields))
    assert (pull is None) == (reader.first_bad is not None)
    for layer in pull.layers if pull is not None else ():
        assert 0 <= layer.progress <= INT64_MAX
        assert layer.total == 0 or layer.progress <= layer.total
        assert layer.extracted_total == 0 or layer.extracted <= layer.extracted_total
        for name in LayerState.__slots__:
            value, default = getattr(layer, name), getattr(LayerState(), name)
            assert type(value) is type(default) or name in ("phase", "idle_s")


# A stream of lines


pulls = st.builds(
    PullState,
    image=names,
    layers=st.lists(
        st.builds(
            LayerState,
            name=names,
            digest=names,
            phase=st.sampled_from([Phase.WAITING, Phase.DOWNLOADING, Phase.EXTRACTING]),
            progress=st.integers(0, 50),
            total=st.integers(100, INT64_MAX),
            resumed=st.just(0),
            extracted=st.integers(0, 50),
            extracted_total=st.integers(100, INT64_MAX),
            is_estimated=st.just(False),
            is_unpacked=st.just(True),
            idle_s=st.just(0.0),
            patience_s=st.just(math.inf),
        ),
        min_size=1,
        max_size=1,
    ).map(tuple),
    sums=st.just(Sums(count=3, progress=5, total=9, rate=2.5, stalled_s=12.0)),
    pods=st.tuples(names),
    place=numbers,
    behind=names,
    starts_in_s=st.sampled_from([None, 18.5]),
    began_s=st.sampled_from([0.0, 1.5e9]),
)


@given(st.lists(pulls, max_size=5, unique_by=lambda pull: pull.image), st.data())
def test_chunks_may_end_anywhere(expected: list[PullState], data: st.DataObject) -> None:
    newlines = st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\r\n \r\n"])
    messages = MessageWriter().changes(expected)
    stream = b"".join(line.encode() + data.draw(newlines, "newline") for line in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8), "cuts"))
    edges = [0, *cuts, len(stream)]
    reader = MessageReader({})
    chunks = [stream[start:end] for start, end in pairwise(edges)]
    pulls = [pull for chunk in chunks for pull in reader.receive_data(chunk)]
    assert [*pulls, *reader.receive_eof()] == expected


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_a_line_over_the_limit_hides_no_other(size: int) -> None:
    stream = b'{"progress":1}\n' + b"x" * 5000 + b'\n{"progress":2}\n' + b"y" * 5000
    reader = MessageReader({}, max_message_bytes=100)
    pulls: list[PullState] = []
    for start in range(0, len(stream), size):
        pulls += reader.receive_data(stream[start : start + size])
        assert len(reader._line) <= 100
    pulls += reader.receive_eof()
    assert [pull.layers[0].progress for pull in pulls] == [1, 2]
    assert reader.first_bad is not None
    assert reader.first_bad.startswith('longer than 100 bytes: "xxx')


# Writing


@given(pulls)
def test_what_is_written_can_be_read(pull: PullState) -> None:
    (line,) = MessageWriter().changes([pull])
    assert line.isascii()
    assert line.isprintable()
    assert read(line) == pull
    # A strict reader of the KEP finds its keys with their types.
    fields = json.loads(line)
    assert fields.keys() <= set(KEYS)
    assert [type(fields[key]) for key in ("progress", "total")] == [int, int]
    assert {type(fields.get(key, "")) for key in ("image", "layer", "error")} == {str}


def test_only_changes_are_written() -> None:
    writer = MessageWriter()
    layers = tuple(
        LayerState(name=name, phase=Phase.DOWNLOADING, progress=1, total=9, idle_s=0.0)
        for name in "ab"
    )
    pull = PullState(image="i", layers=layers)
    assert len(writer.changes([pull])) == 2
    assert writer.changes([pull]) == []
    # How long it lasts is no change, but that it has begun.
    for idle_s, count in ((20.0, 1), (21.0, 0), (0.0, 1)):
        changed = replace(pull, layers=(replace(layers[0], idle_s=idle_s), layers[1]))
        assert len(writer.changes([changed])) == count
    assert json.loads(writer.last)["layer"] == "a"
    # The time until it starts is sent again only now and then.
    for starts_in_s, count in ((18.0, 1), (17.0, 0), (14.0, 1)):
        waits = PullState(image="w", layers=(LayerState(),), place=1, starts_in_s=starts_in_s)
        assert len(writer.changes([waits])) == count
