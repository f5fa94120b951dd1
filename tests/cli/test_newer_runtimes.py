"""Responses of runtimes newer than the throwaway node's, compared with crictl 1.36's output.

``data/*.json`` were printed by crictl on containerd 2.3.4 and CRI-O 1.37. The runtime's responses
are rebuilt from these documents, and must result in the same documents again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from pycrictl._proto import cri_pb2
from tests.captures import documents
from tests.captures.fixtures import utc
from tests.captures.runtimes import message_of
from tests.cli.run import Run
from tests.fakecri import FakeServer

__all__ = ["utc"]

DATA = Path(__file__).parent / "data"


def recorded(name: str) -> list[Any]:
    return [json.loads(line) for line in (DATA / f"{name}.json").read_text("utf-8").splitlines()]


def same(text: str, name: str) -> bool:
    recorded_text = (DATA / f"{name}.json").read_text("utf-8")
    return [*documents(text, list)] == [*documents(recorded_text, list)]


@pytest.mark.parametrize("runtime", ["containerd2", "crio"])
@pytest.mark.parametrize(
    ("command", "call", "response"),
    [
        ("inspect", "ContainerStatus", cri_pb2.ContainerStatusResponse),
        ("inspectp", "PodSandboxStatus", cri_pb2.PodSandboxStatusResponse),
        ("info", "Status", cri_pb2.StatusResponse),
    ],
)
def test_statuses(fake: FakeServer, runtime: str, command: str, call: str, response: Any) -> None:
    name = f"{command}-{runtime}"
    (document,) = recorded(name)
    answer = json_format.ParseDict(message_of(document), response())
    fake.prepare(call, answer, answer)
    target = [] if command == "info" else ["x"]
    shown = Run("-r", fake.endpoint, command, *target)
    assert (shown.code, shown.stderr) == (0, "")
    assert same(shown.stdout, name)
    template = "{{range $key, $value := .}}{{$key}} {{end}}"
    shown = Run("-r", fake.endpoint, command, "-o", "go-template", "--template", template, *target)
    assert shown.stdout.split() == sorted(document)


@pytest.mark.parametrize(
    ("command", "call", "response"),
    [
        ("metricsp", "PodSandboxMetrics", cri_pb2.ListPodSandboxMetricsResponse),
        ("statsp", "PodSandboxStats", cri_pb2.ListPodSandboxStatsResponse),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
def test_lists(fake: FakeServer, command: str, call: str, response: Any, is_stream: bool) -> None:
    name = f"{command}-containerd2"
    (document,) = recorded(name)
    answer = json_format.ParseDict(document, response())
    if is_stream:
        items = getattr(answer, answer.DESCRIPTOR.fields[0].name)
        streamed = getattr(cri_pb2, f"Stream{call}Response")
        field = streamed.DESCRIPTOR.fields[0].name
        fake.prepare(f"Stream{call}", [streamed(**{field: [item]}) for item in items])
    else:
        fake.prepare(f"List{call}", answer)
    shown = Run("-r", fake.endpoint, command, "-o", "json")
    assert (shown.code, shown.stderr) == (0, "")
    assert same(shown.stdout, name)


def test_events(fake: FakeServer) -> None:
    events = [
        json_format.ParseDict(_prefixed(document), cri_pb2.ContainerEventResponse())
        for document in recorded("events-crio")
    ]
    assert len(events) > 3
    fake.prepare("GetContainerEvents", events)
    shown = Run("-r", fake.endpoint, "events")
    assert shown.code == 0
    assert same(shown.stdout, "events-crio")


def _prefixed(document: dict[str, Any]) -> dict[str, Any]:
    for status in document["containersStatuses"]:
        status["stopSignal"] = f"SIGNAL_{status['stopSignal']}"
    return document
