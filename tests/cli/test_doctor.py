"""``doctor`` against the fake runtime, and without one."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path

import grpc
import pytest

from pycrictl._proto import cri_pb2
from tests.cli.run import Run
from tests.fakecri.server import FakeServer, Status


def node(fake: FakeServer, *, network: bool = True) -> None:
    version = cri_pb2.VersionResponse(
        version="0.1.0", runtime_name="cri-o", runtime_version="1.36.0", runtime_api_version="v1"
    )
    fake.offer("Version", version)
    conditions = [
        cri_pb2.RuntimeCondition(type="RuntimeReady", status=True),
        cri_pb2.RuntimeCondition(type="NetworkReady", status=network, message="no network config"),
    ]
    status = cri_pb2.RuntimeStatus(conditions=conditions)
    fake.offer("Status", cri_pb2.StatusResponse(status=status))
    fake.offer("ImageFsInfo", cri_pb2.ImageFsInfoResponse())
    image = cri_pb2.Image(id="1", size=1, repo_tags=["127.0.0.1:1/a/b:1"])
    fake.offer("ListImages", cri_pb2.ListImagesResponse(images=[image]))


def run(endpoint: str, *words: str) -> Run:
    return Run("-r", endpoint, "doctor", "--admin-socket", "/no/such.sock", *words)


def test_a_node_without_anything_serious(fake: FakeServer) -> None:
    node(fake)
    done = run(fake.endpoint, "--no-registry", "-o", "json")
    document = json.loads(done.stdout)
    kinds = {
        finding["kind"] for finding in document["findings"] if finding["severity"] == "serious"
    }
    assert kinds <= {"disk-full", "clock"}  # this machine may have them
    assert (done.code, done.stderr) == (int(bool(kinds)), "")
    assert document["facts"]["runtime"] == "cri-o 1.36.0"


def test_serious_findings_come_first(fake: FakeServer) -> None:
    node(fake, network=False)
    done = run(fake.endpoint)
    assert (done.code, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[0] == (
        "SERIOUS      the runtime says that NetworkReady does not hold: no network config"
    )
    # The registry of the node's only image. A CRI-O of this machine would ask it directly.
    refused = "https://127.0.0.1:1 fails at TCP: connection refused"
    assert any(refused in line for line in lines[: lines.index("")])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("https://reg.test/a", 'it begins with "https://"\nhint: leave that out: reg.test/a'),
        ("reg.test/A", '"A" has upper-case letters\nhint: use lower case: reg.test/a'),
        ("reg:x", 'its registry "reg:x" is invalid'),
    ],
)
def test_an_invalid_registry(fake: FakeServer, name: str, said: str) -> None:
    done = run(fake.endpoint, "--registry", name)
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr.startswith(f'pycrictl: --registry "{name}": {said}')


def test_sources_that_fail_are_named(fake: FakeServer) -> None:
    for name in ("Version", "Status", "ImageFsInfo", "ListImages"):
        fake.offer(name, Status(grpc.StatusCode.INTERNAL, "broken"))
    done = run(fake.endpoint, "-o", "json")
    missing = {source["source"] for source in json.loads(done.stdout)["facts"]["missing"]}
    assert {"runtime version", "runtime status", "disks", "images"} <= missing


def test_a_runtime_that_hangs_is_the_first_finding(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{tmp_path}/hung.sock")
        silent.listen()
        done = run(f"unix://{tmp_path}/hung.sock", "-o", "json")
    document = json.loads(done.stdout)
    assert (done.code, document["findings"][0]["kind"]) == (1, "runtime-hung")
    assert "it accepts connections but does not answer" in document["findings"][0]["text"]
    assert document["facts"]["disks"] is not None


@pytest.mark.parametrize("name", ["Version", "Status", "ListContainers", "ImageFsInfo"])
def test_a_call_that_hangs_is_the_first_finding_and_hides_no_other_source(
    fake: FakeServer, name: str
) -> None:
    node(fake)
    fake.offer("ListContainers", cri_pb2.ListContainersResponse())
    is_over = threading.Event()
    fake.offer(name, lambda request, context: is_over.wait(60))
    done = run(fake.endpoint, "--no-registry", "-o", "json")
    is_over.set()
    document = json.loads(done.stdout)
    assert (done.code, document["findings"][0]["kind"]) == (1, "runtime-hung")
    assert name in document["findings"][0]["text"]
    assert bool(document["facts"]["runtime"]) == (name != "Version")


@pytest.mark.root
def test_somebody_without_rights_is_told_what_was_not_seen(
    fake: FakeServer, tmp_path: Path
) -> None:
    Path(fake.path).chmod(0o600)
    os.seteuid(65534)
    try:
        done = run(fake.endpoint)
    finally:
        os.seteuid(0)
    assert done.code == 1
    lines = done.stdout.splitlines()
    assert lines[0].startswith("SERIOUS      the runtime could not be examined: ")
    assert "permission denied" in lines[0]
    assert any(line.startswith("Unavailable  what only root sees: ") for line in lines)
