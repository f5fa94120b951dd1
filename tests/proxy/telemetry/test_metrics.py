"""The metrics of a whole proxy change with the events that they count."""

from __future__ import annotations

import asyncio
import platform
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from pycrictl import __version__
from pycrictl._proto import cri_pb2
from pycrictl.proxy import admin
from pycrictl.proxy.events import PullRecorded
from pycrictl.proxy.pulls.pull_calls import CallState, PullKey
from pycrictl.proxy.pulls.queue import PullQueue
from pycrictl.proxy.runtime_lookup import PodKey
from pycrictl.proxy.telemetry.history_file import newest
from pycrictl.runtime.cri.calls.client import CriClient
from tests.e2e.node.kubelet import RUNTIME
from tests.fakecri import FakeServer, Status
from tests.proxy.copier import Copier, Pretended, container, refusal
from tests.proxy.program import Program
from tests.proxy.telemetry.records import metrics
from tests.runtime.containerd.fakectd import FakeContainerd
from tests.runtime.containerd.made import Made
from tests.support.limited_pulls import (
    ABSENT,
    PRESENT,
    Gate,
    LandingCri,
    pod,
    prepare,
    status,
)
from tests.support.scrapes import LISTEN, Scrape, get
from tests.waiting import wait_until

__all__ = ["container"]

Start = Callable[..., Program]
GIB = 1024**3
PULL_B = cri_pb2.PullImageRequest(image=cri_pb2.ImageSpec(image="b")).SerializeToString()


def test_pulls_slots_the_line_and_streams(fake: FakeServer, start: Start) -> None:
    gate = Gate()
    prepare(fake, gate)
    sandbox = cri_pb2.PodSandbox(id="id-w0", metadata=pod("w0").config.metadata)
    fake.prepare("ListPodSandbox", cri_pb2.ListPodSandboxResponse(items=[sandbox]), repeat=True)
    proxy = start("--max-parallel-image-pulls", "1", *LISTEN)
    assert Scrape(proxy)("pulls_running") == 0
    futures: list[Any] = [
        proxy.kubelet.start_pull(image, pod(f"w{number}"))
        for number, image in enumerate(("a", "a", "b", "c"))
    ]
    wait_until(lambda: len(status(proxy)["waiting"]) == 2 and status(proxy)["joined"])
    during = Scrape(proxy)
    assert (during("pulls_running"), during("pulls_waiting")) == (1, 2)
    assert (during("pull_slots"), during("pull_slots_taken")) == (1, 1)
    request = cri_pb2.ImagePullProgressRequest(pod_sandbox_id="id-w0")
    response = cri_pb2.ImagePullProgressResponse
    url = proxy.kubelet.call(RUNTIME + "ImagePullProgress", request, response).url
    with urllib.request.urlopen(url, timeout=60) as lines:
        assert lines.readline()
        assert Scrape(proxy)("streams_open") == 1
        gate.open.set()
        lines.read()
    assert all(future.result(60).image_ref for future in futures)
    wait_until(lambda: Scrape(proxy)("pulls_total", outcome="pulled", code="OK") == 4)
    wait_until(lambda: Scrape(proxy)("streams_total", kind="progress_http", end="done") == 1)
    after = Scrape(proxy)
    assert after("streams_open") == 0
    assert after("pulls_joined_total") == 1
    assert after("pull_wait_seconds_count") == 3
    assert after("pull_wait_seconds_sum") > 0
    assert after("pull_duration_seconds_count") == 3
    assert after("pulls_waiting") == 0


def test_outcomes_and_limits(fake: FakeServer, start: Start) -> None:
    gate = Gate()
    denied = Status(grpc.StatusCode.NOT_FOUND, "secret-reason")
    fake.prepare("ImageStatus", ABSENT, PRESENT, ABSENT, repeat=True)
    fake.prepare("PullImage", denied, gate, gate, repeat=True)
    proxy = start("--when-full", "retry", "--retries=0", *LISTEN)
    admin.ask(str(proxy.admin_path), "set-limit", timeout_s=60, limit=1)
    with pytest.raises(grpc.RpcError):
        proxy.kubelet.pull("secret-image", pod("secret-pod"))
    gate.open.set()
    proxy.kubelet.pull("there")
    gate.open.clear()
    held = proxy.kubelet.start_pull("b")
    wait_until(lambda: status(proxy)["slotsTaken"] == 1)
    with pytest.raises(grpc.RpcError):
        proxy.kubelet.pull("c")
    admin.ask(str(proxy.admin_path), "set-limit", timeout_s=60, limit=1)

    held.cancel()
    expected = {
        ("failed", "NotFound"),
        ("present", "OK"),
        ("refused", "ResourceExhausted"),
        ("gone", ""),
    }

    def has_all() -> bool:
        seen = Scrape(proxy)
        return all(
            seen("pulls_total", outcome=outcome, code=code) >= 1 for outcome, code in expected
        )

    wait_until(has_all)
    assert Scrape(proxy)("refused_total", limit="pull_slots") == 1
    assert "secret" not in Scrape(proxy).text


def test_bytes_by_phase(folder: Path) -> None:
    def land() -> None:
        image = Made(containerd, "library/a", ["one", "two"], size_bytes=3 * GIB)
        image.begin("lease", at_s=4e9)
        image.complete(0, at_s=1.0)
        image.complete(1, at_s=4e9)
        image.commit(1, at_s=4e9)
        containerd.snapshots[image.chain_ids[1]].usage = 7
        containerd.images["docker.io/library/a:1"] = image.manifest

    containerd = FakeContainerd(folder, LandingCri(land))
    with containerd, Program(folder, containerd.endpoint, *LISTEN) as proxy:
        assert Scrape(proxy)("pull_bytes_total", phase="downloaded") == 0
        proxy.kubelet.pull("a:1", pod("web"))
        wait_until(lambda: Scrape(proxy)("pull_bytes_total", phase="downloaded") == 3 * GIB)
        scrape = Scrape(proxy)
        assert scrape("pull_bytes_total", phase="reused") == 3 * GIB
        assert scrape("pull_bytes_total", phase="extracted") == 7
        assert f" bytes={3 * GIB} reused={3 * GIB}" in proxy.log()
        wait_until(lambda: newest(proxy.state_path))
        (kept,) = newest(proxy.state_path)
        assert (kept["gotBytes"], kept["reusedBytes"]) == (3 * GIB, 3 * GIB)
        assert kept["digest"] == containerd.images["docker.io/library/a:1"]


def test_a_pull_of_several_attempts_waits_once() -> None:
    async def run() -> float | None:
        counting, queue = metrics(), PullQueue(1)
        for number, how in enumerate((CallState.FAILED, CallState.FAILED, CallState.DONE)):
            call = queue.submit(number, PullKey("a"), now=number, pod=PodKey("n", "web", "u"))
            queue.end(number, how, now=number + 0.5)
            counting(PullRecorded(call))
        assert call.attempt == 3
        return counting.page.registry.get_sample_value("pycrictl_pull_wait_seconds_count")

    assert asyncio.run(run()) == 1


def test_calls(fake: FakeServer, start: Start) -> None:
    fake.prepare("Version", cri_pb2.VersionResponse(), repeat=True)
    fake.prepare("ListContainers", Status(grpc.StatusCode.INTERNAL, "no"))
    fake.prepare("StopContainer", cri_pb2.StopContainerResponse())
    fake.prepare("Exec", cri_pb2.ExecResponse())
    fake.prepare("GetContainerEvents", [cri_pb2.ContainerEventResponse(container_id="a")])
    proxy = start(*LISTEN)
    with CriClient(str(proxy.socket_path), timeout_s=60) as client:
        for name in ("Version", "StopContainer", "Exec"):
            request = getattr(cri_pb2, f"{name}Request")()
            proxy.kubelet.call(RUNTIME + name, request, getattr(cri_pb2, f"{name}Response"))
        with pytest.raises(Exception, match="no"):
            client.call("ListContainers", cri_pb2.ListContainersRequest())
        assert len(list(client.stream("GetContainerEvents", cri_pb2.GetEventsRequest()))) == 1
    with pytest.raises(grpc.RpcError):
        proxy.kubelet.call("/x.Y/Z", cri_pb2.VersionRequest(), cri_pb2.VersionResponse)
    wait_until(lambda: Scrape(proxy)("calls_total", method="GetContainerEvents", code="OK") == 1)
    scrape = Scrape(proxy)
    for name, code in (
        ("Version", "OK"),
        ("ListContainers", "Internal"),
        ("GetContainerEvents", "OK"),
        ("other", "Unimplemented"),
    ):
        assert scrape("calls_total", method=name, code=code) == 1, scrape.text


@pytest.mark.root
def test_copies_and_streams(
    fake: FakeServer, start: Start, container: Pretended, tmp_path: Path
) -> None:
    proxy = start("--container-copies-per-pod", "1", *LISTEN)
    copier = Copier(proxy)
    with copier.client:
        (container.root / "file").write_bytes(b"x" * 3000)
        copier.out("/file", tmp_path / "file")
        copier.into("/etc/hostname", "/to")
        copier.wait_until_idle()

        def done(direction: str) -> float:
            return Scrape(proxy)("copies_total", direction=direction, end="done")

        wait_until(lambda: done("from") == done("to") == 1)
        scrape = Scrape(proxy)
        assert scrape("copy_bytes_total", direction="from") > 3000
        assert scrape("copies_running") == 0
        copier.ask_to()
        assert refusal(copier.ask_to)[0] == "RESOURCE_EXHAUSTED"
        scrape = Scrape(proxy)
        assert scrape("copies_running") == 1
        assert scrape("refused_total", limit="copies_per_pod") == 1


def test_the_runtime_and_the_program(fake: FakeServer, start: Start) -> None:
    fake.prepare("Version", cri_pb2.VersionResponse(), repeat=True)
    proxy = start(*LISTEN)
    scrape = Scrape(proxy)
    assert scrape("upstream_up") == 1
    build = {"version": __version__, "python": platform.python_version()}
    assert scrape("build_info", **build) == 1
    assert ("process_resident_memory_bytes", frozenset()) in scrape.samples
    assert get(proxy, "/readyz") == (200, "ok\n")
    assert get(proxy, "/livez?verbose") == (200, "ok\n")
    assert get(proxy, "/")[0] == 404


def test_without_a_runtime(fake: FakeServer, start: Start, folder: Path) -> None:
    proxy = start(*LISTEN, upstream=f"unix://{folder}/none.sock")
    assert Scrape(proxy)("upstream_up") == 0
    code, text = get(proxy, "/readyz")
    assert code == 503
    assert "cannot be reached" in text
    assert get(proxy, "/livez") == (200, "ok\n")


def test_a_hand_over(fake: FakeServer, start: Start, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    proxy = start("--metrics-listen", address)
    assert Scrape(proxy)("handovers_total", end="taken") == 0
    proxy.reload()
    assert proxy.wait() == 0
    assert Scrape(proxy)("handovers_total", end="taken") == 1
    assert Scrape(proxy)("handovers_total", end="failed") == 0
    with socket.socket(socket.AF_UNIX) as new:
        new.connect(str(proxy.admin_path))
        new.sendall(b'{"call": "take-over"}\n')
    wait_until(lambda: Scrape(proxy)("handovers_total", end="failed") == 1)
