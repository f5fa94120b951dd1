"""What `why` reads in tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pycrictl._proto import cri_pb2
from tests.fakecri.server import FakeServer

NOW = 1_790_000_000.0
NOISE = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{64}|pycrictl proxy:|rpc error: "
"""What people need not read: UIDs, whole IDs, and who passed an error on."""


@pytest.fixture(autouse=True)
def no_journal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the journal of this machine."""
    monkeypatch.setenv("PATH", str(tmp_path))


IMAGE = "reg.example/web:1"


def node(fake: FakeServer, exit_codes: Mapping[str, int | None]) -> None:
    """Offer a pod for each NAMESPACE/NAME; its container exited with this code, or runs if None."""
    pods, listed = cri_pb2.ListPodSandboxResponse(), cri_pb2.ListContainersResponse()
    made_ns, ended_ns = int((NOW - 7200) * 1e9), int((NOW - 60) * 1e9)
    statuses, pod_statuses = {}, {}
    for number, (full_name, code) in enumerate(exit_codes.items()):
        namespace, name = full_name.split("/")
        pod = pods.items.add(id=f"{number:x}" * 64, created_at=made_ns)
        pod.metadata.namespace, pod.metadata.name = namespace, name
        pod.metadata.uid = f"uid-{name}"
        pod_statuses[pod.id] = cri_pb2.PodSandboxStatusResponse(
            status={"id": pod.id, "metadata": pod.metadata, "created_at": made_ns}
        )
        state = cri_pb2.CONTAINER_RUNNING if code is None else cri_pb2.CONTAINER_EXITED
        container = listed.containers.add(
            id=f"{number:x}c" * 32, pod_sandbox_id=pod.id, state=state
        )
        container.metadata.name, container.created_at, container.image.image = "app", made_ns, IMAGE
        status = cri_pb2.ContainerStatus(id=container.id, state=state, exit_code=code or 0)
        status.metadata.name, status.image.image, status.image_ref = "app", IMAGE, "sha256:1"
        status.created_at, status.started_at, status.finished_at = made_ns, made_ns, ended_ns
        statuses[container.id] = cri_pb2.ContainerStatusResponse(status=status)
    fake.offer("ListPodSandbox", pods)
    fake.offer("PodSandboxStatus", lambda request, _: pod_statuses[request.pod_sandbox_id])
    fake.offer("ListContainers", listed)
    fake.offer("ContainerStatus", lambda request, _: statuses[request.container_id])
    fake.offer("ImageStatus", cri_pb2.ImageStatusResponse(image=cri_pb2.Image(id="1", size=1)))
    fake.offer("ImageFsInfo", cri_pb2.ImageFsInfoResponse())
    fake.offer("Status", cri_pb2.StatusResponse())
