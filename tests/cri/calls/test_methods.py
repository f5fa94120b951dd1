from __future__ import annotations

from typing import Any

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.cri.calls.methods import deadline_s


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
