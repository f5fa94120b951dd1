"""``why`` against the fake runtime: exit statuses, formats, and sources that fail."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.diagnosis.survey import Sources, Survey
from pycrictl.pulls.sources.node_watch import Pulls
from pycrictl.runtime.cri.calls.client import CriClient
from tests.cli.run import Run
from tests.fakecri.server import FakeServer, Status
from tests.support.findings import NOW, no_journal, node

__all__ = ["no_journal"]

CONTAINER = "0c" * 32


@pytest.fixture
def root(tmp_path: Path) -> str:
    """The root of a node without files, to keep the disks of this machine out of the findings."""
    folder = tmp_path / "node"
    folder.mkdir()
    return str(folder)


def run(fake: FakeServer, root: str, *words: str) -> Run:
    words = ("--host-root", root, "-r", fake.endpoint, "why", *words, "--no-kube")
    return Run(*words, wall_clock=lambda: NOW)


def test_a_healthy_pod_has_one_line(fake: FakeServer, root: str) -> None:
    node(fake, {"default/web": None})
    done = run(fake, root, "web")
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout == "default/web is running: 1 container, for 2 hours\n"


def test_a_crashed_pod(fake: FakeServer, root: str) -> None:
    node(fake, {"default/web": 127})
    done = run(fake, root, "default/web")
    assert (done.code, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[0] == (
        'default/web is not running: container "app" has ended: exit code 127 (a command was not'
        " found)"
    )
    assert lines[1] == "next         'pycrictl logs 0c0c0c0c0c0c0' shows its log"
    assert "Container    app, 0c0c0c0c0c0c0, exited with 127, about a minute ago" in lines
    assert "Image        reg.example/web:1: present" in lines


def test_sources_that_fail_are_named_and_never_fatal(fake: FakeServer, root: str) -> None:
    node(fake, {"default/web": 1})
    for name in ("ImageFsInfo", "ImageStatus", "Status", "PodSandboxStatus", "ContainerStatus"):
        fake.offer(name, Status(grpc.StatusCode.INTERNAL, "broken"))
    done = run(fake, root, "web", "-o", "json")
    assert (done.code, done.stderr) == (1, "")
    document = json.loads(done.stdout)
    missing = {source["source"]: source["reason"] for source in document["facts"]["missing"]}
    expected = {"disks", "image status", "runtime status", "pod status", "container status"}
    assert expected <= set(missing)
    assert "broken" in missing["disks"]
    assert document["facts"]["containers"][0]["state"] == "unknown"


def test_all_pods_that_are_not_what_they_should_be(fake: FakeServer) -> None:
    node(fake, {"a/ok": None, "a/done": 0, "a/bad": 3, "a/worse": 1})
    done = Run("-r", fake.endpoint, "why", "--no-kube", wall_clock=lambda: NOW)
    assert (done.code, done.stderr) == (1, "")
    lines = [line for line in done.stdout.splitlines() if not line.startswith("unavailable: ")]
    assert lines == [
        'a/bad is not running: container "app" has ended: exit code 3;'
        f" next: 'pycrictl logs {'2c' * 6}2' shows its log",
        'a/worse is not running: container "app" has ended: exit code 1;'
        f" next: 'pycrictl logs {'3c' * 6}3' shows its log",
    ]
    asked = [
        call.request.container_id[0] for call in fake.calls if call.method == "ContainerStatus"
    ]
    assert "0" not in asked  # the list already shows that it runs
    done = Run("-r", fake.endpoint, "why", "--no-kube", "-o", "json", wall_clock=lambda: NOW)
    document = json.loads(done.stdout)
    assert (done.code, document["sick"], document["pods"]) == (1, 2, 4)
    assert [finding["pod"] for finding in document["findings"]] == ["a/bad", "a/worse"]
    assert document["findings"][0]["cause"]["kind"] == "crashed"


def test_no_pod_is_sick(fake: FakeServer) -> None:
    node(fake, {"a/ok": None, "a/done": 0})
    done = Run("-r", fake.endpoint, "why", "--no-kube", wall_clock=lambda: NOW)
    assert done.code == 0
    assert done.stdout.startswith("2 pods: no problem was found in the available sources\n")


def test_a_missing_pause_image_is_named(fake: FakeServer) -> None:
    node(fake, {"a/ok": None})
    info = {"config": json.dumps({"sandboxImage": "reg.example/pause:3"})}
    fake.offer("Status", cri_pb2.StatusResponse(info=info))
    fake.offer("ImageStatus", cri_pb2.ImageStatusResponse())
    done = Run("-r", fake.endpoint, "why", "--no-kube", wall_clock=lambda: NOW)
    assert (done.code, done.stdout.splitlines()[0]) == (
        0,
        'the image of every pod sandbox (pause), "reg.example/pause:3", is not on the node;'
        " next: 'pycrictl pull reg.example/pause:3' shows whether the next pod can get it",
    )


def test_ended_containers_are_asked_for_once(fake: FakeServer) -> None:
    node(fake, {"a/ok": None, "a/bad": 3})
    with CriClient(fake.path, timeout_s=20) as client:
        sources = Sources()
        survey = Survey(client, client, sources, lambda _: lambda _: Pulls(), wall_s=lambda: NOW)
        first = survey.pods()
        asked = fake.methods().count("ContainerStatus")
        second = survey.pods()
    assert [report.facts.full_name for report in first.reports if report.is_sick] == ["a/bad"]
    assert second.reports == first.reports
    assert fake.methods().count("ContainerStatus") == asked
