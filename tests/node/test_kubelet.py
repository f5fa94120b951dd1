"""What the tests' own kubelet makes of a runtime's answers."""

from __future__ import annotations

import grpc
import pytest

from pycrictl._proto import cri_pb2
from tests.fakecri.server import FakeServer

from .kubelet import Kubelet


@pytest.mark.parametrize(
    ("conditions", "is_ready"),
    [
        ({"RuntimeReady": True, "NetworkReady": True}, True),
        ({"RuntimeReady": True, "NetworkReady": False}, False),
        ({}, False),
        # containerd 2 on cgroup v1
        (
            {
                "RuntimeReady": True,
                "NetworkReady": True,
                "ContainerdHasNoDeprecationWarnings": False,
            },
            True,
        ),
    ],
)
def test_a_runtime_is_ready_by_the_conditions_of_the_cri(
    fake: FakeServer, conditions: dict[str, bool], is_ready: bool
) -> None:
    listed = [cri_pb2.RuntimeCondition(type=key, status=on) for key, on in conditions.items()]
    status = cri_pb2.RuntimeStatus(conditions=listed)
    fake.prepare("Status", cri_pb2.StatusResponse(status=status))
    with grpc.insecure_channel(f"unix://{fake.path}") as channel:
        assert Kubelet(channel, cgroup_parent="").ready(timeout_s=10) is is_ready
