from __future__ import annotations

from typing import Any

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.cri.calls.methods import deadline_s, method

NAMES = [
    found.name
    for service in cri_pb2.DESCRIPTOR.services_by_name.values()
    for found in service.methods
]


def test_streams() -> None:
    streams = {name for name in NAMES if method(name).is_stream}
    assert streams == {
        "GetContainerEvents",
        "StreamContainers",
        "StreamContainerStats",
        "StreamImages",
        "StreamPodSandboxes",
        "StreamPodSandboxMetrics",
        "StreamPodSandboxStats",
    }


def test_names_are_those_of_both_services_and_unique() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert {"RunPodSandbox", "ListImages", "ImagePullProgress", "CopyToContainer"} <= set(NAMES)
    for name in NAMES:
        assert method(name).request_type.DESCRIPTOR.full_name.startswith("runtime.v1.")


@pytest.mark.parametrize(
    ("name", "request_message", "expected"),
    [
        ("Version", cri_pb2.VersionRequest(), 3),
        ("ListImages", cri_pb2.ListImagesRequest(), 3),
        ("StreamImages", cri_pb2.StreamImagesRequest(), 3),
        ("CheckpointContainer", cri_pb2.CheckpointContainerRequest(timeout=60), 3),
        ("RunPodSandbox", cri_pb2.RunPodSandboxRequest(), 6),
        ("StopContainer", cri_pb2.StopContainerRequest(), 3),
        ("StopContainer", cri_pb2.StopContainerRequest(timeout=10), 13),
        ("StopContainer", cri_pb2.StopContainerRequest(timeout=-10), 3),
        ("ExecSync", cri_pb2.ExecSyncRequest(), None),
        ("ExecSync", cri_pb2.ExecSyncRequest(timeout=5), 8),
        ("ExecSync", cri_pb2.ExecSyncRequest(timeout=-5), None),
        ("PullImage", cri_pb2.PullImageRequest(), None),
        ("GetContainerEvents", cri_pb2.GetEventsRequest(), None),
    ],
)
def test_deadlines(name: str, request_message: Any, expected: float | None) -> None:
    assert deadline_s(name, request_message, 3) == expected
