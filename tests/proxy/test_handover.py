"""A running proxy hands over to a new process without its clients noticing."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import PycrictlError
from pycrictl.base.processes import is_running
from pycrictl.copy.transfer.messages import CHANNEL_END, TO_CONTAINER
from tests.e2e.node.kubelet import Kubelet
from tests.fakecri import FakeServer, Status
from tests.processes import connections
from tests.proxy.copier import ARCHIVE, Copier, Pretended, outcome_of, stream
from tests.proxy.program import OPTIONS, Program
from tests.serving import free_port
from tests.support.limited_pulls import Gate, pod, prepare, pulls, status, version
from tests.waiting import wait_until
from tools.torture import restarts

pytestmark = pytest.mark.slow

Start = Callable[..., Program]


@pytest.fixture
def gate(fake: FakeServer) -> Gate:
    gate = Gate()
    prepare(fake, gate)
    return gate


@pytest.fixture
def proxy(start: Start, gate: Gate) -> Program:
    return start("--max-parallel-image-pulls", "1")


def images(pulls: list[dict[str, Any]]) -> list[str]:
    return [pull["image"].rpartition("/")[2] for pull in pulls]


def ask(proxy: Program, kubelet: Kubelet, number: int) -> Any:
    def count() -> int:
        document = status(proxy)
        return len(document["running"]) + len(document["waiting"])

    before = count()
    future = kubelet.start_pull(f"a/b:{number}", pod(f"p{number}"))
    wait_until(lambda: count() == before + 1)
    return future


def await_pulls(fake: FakeServer, count: int) -> None:
    """Wait until exactly ``count`` pulls in total have reached the runtime."""
    wait_until(lambda: len(pulls(fake)) >= count)
    assert len(pulls(fake)) == count


def let_one_go(gate: Gate, futures: list[Any]) -> None:
    done = sum(future.done() for future in futures)
    gate.permit.release()
    wait_until(lambda: sum(future.done() for future in futures) == done + 1)


def test_programs_follow_one_another_while_the_first_still_pulls(
    fake: FakeServer, start: Start, gate: Gate
) -> None:
    proxy = start("--max-parallel-image-pulls", "2")
    futures = [ask(proxy, proxy.kubelet, number) for number in range(4)]
    second = proxy.reload()
    wait_until(lambda: len(status(proxy)["waiting"]) == 2)
    assert status(proxy)["predecessor"] == {"pid": proxy.pid, "pulls": 2}
    with grpc.insecure_channel(proxy.endpoint, options=OPTIONS) as channel:
        futures.append(ask(proxy, Kubelet(channel, cgroup_parent="/late"), 4))
        third = proxy.reload()
        wait_until(lambda: len(status(proxy)["waiting"]) == 3)
        document = status(proxy)
        assert document["predecessor"] == {"pid": second, "pulls": 2}
        assert document["slotsTaken"] == 2
        assert images(document["running"]) == ["b:0", "b:1"]
        assert images(document["waiting"]) == ["b:2", "b:3", "b:4"]
        assert [pull["pod"] for pull in document["running"]] == ["default/p0", "default/p1"]
        assert is_running(proxy.pid)
        for done in range(5):
            await_pulls(fake, min(done + 2, 5))
            let_one_go(gate, futures)
    assert all(future.result(60).image_ref for future in futures)
    pulled = [call.request.image.image for call in pulls(fake)]
    assert [*sorted(pulled[:2]), *pulled[2:]] == [f"a/b:{n}" for n in range(5)]
    assert gate.peak == 2
    assert proxy.wait() == 0
    wait_until(lambda: not is_running(second))
    assert is_running(third)
    wait_until(lambda: status(proxy)["predecessor"] is None)
    assert status(proxy)["running"] == []
    assert proxy.log().count(" pull image=") == 5
    assert "Traceback" not in proxy.log()


def test_a_failure_reaches_the_caller_and_the_new_program(fake: FakeServer, start: Start) -> None:
    go_on = threading.Event()

    def fail(request: Any, context: grpc.ServicerContext) -> Status:
        assert go_on.wait(60)
        return Status(grpc.StatusCode.NOT_FOUND, "no such image")

    prepare(fake, fail)
    proxy = start()
    future: Any = proxy.kubelet.start_pull("a/b:1", pod("p1"))
    wait_until(lambda: len(status(proxy)["running"]) == 1)
    proxy.reload()
    go_on.set()
    assert future.exception(60) is not None
    assert future.details() == "no such image"
    wait_until(lambda: status(proxy)["running"] == [])
    (failure,) = status(proxy)["failures"]
    assert failure["error"] == "no such image"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_old_program_goes_on_when_the_new_one_ends(
    proxy: Program, gate: Gate, number: int
) -> None:
    running, waiting = (ask(proxy, proxy.kubelet, number) for number in range(2))
    new = proxy.reload()
    wait_until(lambda: len(status(proxy)["waiting"]) == 1)
    os.kill(new, number)
    if number == signal.SIGTERM:
        wait_until(lambda: "stopping" in proxy.log())
    else:
        assert waiting.exception(60) is not None
        assert waiting.code() is grpc.StatusCode.UNAVAILABLE
    gate.open.set()
    assert running.result(60).image_ref
    if number == signal.SIGTERM:
        assert waiting.result(60).image_ref
    wait_until(lambda: not is_running(new))
    assert proxy.wait() == 0
    assert "Traceback" not in proxy.log()


# Watchers and copies


def streams_of(proxy: Program) -> Path:
    return proxy.socket_path.resolve().with_name(proxy.streams.rpartition(":")[2])


@pytest.mark.parametrize("way", ["reload", "restart"])
def test_a_watcher_goes_on_with_the_new_program(
    fake: FakeServer, start: Start, way: str, folder: Path, gate: Gate
) -> None:
    config = pod("web").config
    sandbox = cri_pb2.PodSandbox(id="web", metadata=config.metadata)
    fake.offer("ListPodSandbox", cri_pb2.ListPodSandboxResponse(items=[sandbox]))
    proxy = start()
    words = ("-r", proxy.endpoint, "image-pull-progress", "--progress", "json", "web")
    future: Any = proxy.kubelet.start_pull("a/b:1", pod("web"))
    wait_until(lambda: len(status(proxy)["running"]) == 1)
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        command = [sys.executable, "-m", "pycrictl", *words]
        watcher = subprocess.Popen(command, stdout=out, stderr=err)
        wait_until(lambda: "downloading" in (folder / "out").read_text())
        if way == "reload":
            proxy.reload()
            wait_until(lambda: "connecting again" in (folder / "err").read_text())
        else:
            proxy.terminate()
            wait_until(lambda: "stopping" in proxy.log())
        wait_until(lambda: connections(streams_of(proxy)))
        gate.open.set()
        assert future.result(60).image_ref
        assert watcher.wait(60) == 0
    last = json.loads((folder / "out").read_text().splitlines()[-1])
    assert last["phase"] == "done"
    assert "unfinished" not in (folder / "err").read_text()


def copy_under_way(copier: Copier) -> Any:
    connection = stream(ask_to(copier, "under-way"))
    connection.send(TO_CONTAINER, ARCHIVE)
    wait_until(lambda: "copying" in {copy["state"] for copy in copier.copies})
    return connection


def ask_to(copier: Copier, name: str) -> str:
    return copier.ask_to(f"/to/{name}", len(ARCHIVE), zlib.crc32(ARCHIVE))


def finish(connection: Any) -> None:
    connection.send(CHANNEL_END, bytes((TO_CONTAINER,)))
    assert not outcome_of(connection).failure
    connection.close()


def copy(url: str) -> None:
    connection = stream(url)
    connection.send(TO_CONTAINER, ARCHIVE)
    finish(connection)


@pytest.mark.root
def test_urls_of_the_old_program_stay_good(container: Pretended, start: Start) -> None:
    copier = Copier(start())
    with copier.client:
        early, under_way = ask_to(copier, "early"), copy_under_way(copier)
        second = copier.proxy.reload()
        middle = ask_to(copier, "middle")
        copier.proxy.reload()
        late = ask_to(copier, "late")
        finish(under_way)
        for url in (early, middle, late):
            copy(url)
        copier.wait_until_idle()
    copies = sorted(path.name for path in (container.root / "to").iterdir())
    assert copies == ["early", "late", "middle", "under-way"]
    assert copier.proxy.wait() == 0
    wait_until(lambda: not is_running(second))
    assert "Traceback" not in copier.proxy.log()


@pytest.mark.root
def test_a_fixed_port_is_the_new_programs(container: Pretended, start: Start) -> None:
    copier = Copier(start("--stream-address", f"127.0.0.1:{free_port()}"))
    with copier.client:
        under_way = copy_under_way(copier)
        copier.proxy.reload()
        copy(ask_to(copier, "late"))
        finish(under_way)
    assert copier.proxy.wait() == 0
    assert sorted(path.name for path in (container.root / "to").iterdir()) == ["late", "under-way"]


# Failed hand-overs, and other ways to request one


def refused_reload(proxy: Program) -> str:
    with pytest.raises(PycrictlError) as caught:
        proxy.reload()
    return caught.value.message


def test_a_new_program_that_does_not_start_changes_nothing(
    start: Start, folder: Path, gate: Gate
) -> None:
    config = folder / "pycrictl.toml"
    config.write_text("max-parallel-image-pulls = 1\n")
    proxy = start("--config", str(config))
    futures = [ask(proxy, proxy.kubelet, number) for number in range(2)]
    config.write_text("max-parallel-image-pulls = nonsense\n")
    assert refused_reload(proxy) == "the new program ended before it served; the log says why"
    assert "is not valid TOML" in proxy.log()
    os.kill(proxy.pid, signal.SIGHUP)
    wait_until(lambda: " reload_failed " in proxy.log())
    assert len(status(proxy)["waiting"]) == 1
    # Now the new process starts, with the changed configuration.
    config.write_text("max-parallel-image-pulls = 2\n")
    os.kill(proxy.pid, signal.SIGHUP)
    wait_until(lambda: " handed_over " in proxy.log())
    assert status(proxy)["limit"] == 2
    wait_until(lambda: len(status(proxy)["running"]) == 2)
    gate.open.set()
    assert all(future.result(60).image_ref for future in futures)
    assert proxy.wait() == 0
    assert status(proxy)["predecessor"] is None


FAILING = """
import asyncio, os, sys
from types import SimpleNamespace
from pycrictl.proxy.handover import Predecessor

step, admin, listen = sys.argv[1:]
limiter = SimpleNamespace(count=lambda *words, **more: None, queue=SimpleNamespace())

async def take():
    old = await Predecessor.reach(admin, limiter)
    if step == "offered":
        return
    work = asyncio.create_task(old.announce(listen, "127.0.0.1:1"))
    if step == "ready":
        await asyncio.sleep(0.01)
    else:
        assert await work == 2
    os._exit(0)

asyncio.run(take())
"""


@pytest.mark.parametrize("step", ["offered", "ready", "taken"])
def test_a_new_program_that_ends_in_the_middle_changes_nothing(
    fake: FakeServer, step: str, proxy: Program, gate: Gate
) -> None:
    fake.prepare("Version", cri_pb2.VersionResponse(runtime_name="fake"), repeat=True)
    futures = [ask(proxy, proxy.kubelet, number) for number in range(3)]
    words = [step, str(proxy.admin_path), str(proxy.socket_path)]
    subprocess.run([sys.executable, "-c", FAILING, *words], timeout=60, check=True)
    wait_until(lambda: " not_handed_over " in proxy.log())
    assert version(proxy) == "fake"
    host, _, port = proxy.streams.rpartition(":")
    socket.create_connection((host, int(port)), timeout=60).close()
    wait_until(lambda: len(status(proxy)["waiting"]) == 2)
    futures.append(ask(proxy, proxy.kubelet, 3))
    for done in range(4):
        await_pulls(fake, done + 1)
        let_one_go(gate, futures)
    assert [call.request.image.image for call in pulls(fake)] == [f"a/b:{n}" for n in range(4)]


def test_reload_by_the_command_of_the_unit(fake: FakeServer, start: Start, folder: Path) -> None:
    config = folder / "pycrictl.toml"
    config.write_text("")
    fake.prepare("Version", cri_pb2.VersionResponse(runtime_name="fake"), repeat=True)
    proxy = start("--config", str(config))
    before = proxy.socket_path.readlink()
    done = proxy.run("--config", str(config), "--reload")
    assert (done.returncode, done.stdout) == (0, "")
    told = re.fullmatch(r"pycrictl: process (\d+) now serves\n", done.stderr)
    assert told is not None
    new = int(told[1])
    assert proxy.wait() == 0
    assert proxy.socket_path.readlink() != before
    assert version(proxy) == "fake"
    config.write_text("when-full = 3\n")
    done = proxy.run("--reload")
    assert done.returncode == 1
    assert done.stderr.endswith("when-full: '3' is not one of 'wait', 'retry'\n")
    config.write_text("")
    os.kill(new, signal.SIGTERM)
    wait_until(lambda: not is_running(new))
    assert not proxy.socket_path.exists()
    assert not proxy.admin_path.exists()
    nobody = proxy.run("--reload")
    assert nobody.returncode == 1
    assert "cannot reach the proxy's admin socket" in nobody.stderr


def test_kubelet_does_not_notice() -> None:
    """Run a few rounds of ``tools/torture/restarts.py``; each returns what kubelet noticed."""
    with restarts.node(0.1) as node:
        for way in (node.reload, node.failed_upgrade, node.restart, node.kill):
            assert way() == []
        assert "Traceback" not in node.program.log()
