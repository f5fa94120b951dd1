"""The program as a whole: start, shutdown, log and status."""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import PycrictlError
from pycrictl.base.processes import is_running
from pycrictl.proxy import admin
from pycrictl.proxy.pulls.pull_image import CLOSED
from tests.e2e.node.kubelet import RUNTIME, Kubelet
from tests.fakecri import FakeServer
from tests.proxy.copier import Copier, Pretended
from tests.proxy.program import OPTIONS, Program
from tests.support.limited_pulls import Gate, pod, prepare, status, version
from tests.support.progress_streams import WEB, ask, read, sandboxes
from tests.waiting import wait_until

Start = Callable[..., Program]


def is_closed(proxy: Program) -> bool:
    with socket.socket(socket.AF_UNIX) as late:
        return late.connect_ex(str(proxy.socket_path)) in (errno.ECONNREFUSED, errno.ENOENT)


@pytest.fixture
def systemd(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(folder / "notify"))
        made.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "notify"))
        yield made


def test_it_tells_systemd(fake: FakeServer, folder: Path, systemd: socket.socket) -> None:
    with Program(folder, fake.endpoint) as proxy:
        assert systemd.recv(100) == b"READY=1"
        assert proxy.socket_path.exists()
        pid = proxy.reload()
        # systemd accepts notifications from the main process only.
        assert systemd.recv(100) == b"MAINPID=%d" % pid
        assert systemd.recv(100) == b"READY=1"
        os.kill(pid, signal.SIGTERM)
        assert systemd.recv(100) == b"STOPPING=1"
        wait_until(lambda: not is_running(pid))
        assert proxy.wait() == 0


def test_keep_alives(
    fake: FakeServer, folder: Path, systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "300000")
    with Program(folder, fake.endpoint):
        assert [systemd.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]


def test_nohup_keeps_it_from_sighup(fake: FakeServer, start: Start) -> None:
    fake.prepare("Version", cri_pb2.VersionResponse(runtime_name="fake"), repeat=True)
    proxy = start(prefix=("nohup",))
    os.kill(proxy.pid, signal.SIGHUP)
    assert version(proxy) == "fake"
    assert is_running(proxy.pid)
    assert "reload" not in proxy.log()


def test_lines_for_the_journal(
    fake: FakeServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(folder, fake.endpoint)
    program.log_path.touch()
    journal = program.log_path.stat()
    monkeypatch.setenv("JOURNAL_STREAM", f"{journal.st_dev}:{journal.st_ino}")
    with program as proxy:
        lines = proxy.log().splitlines()
    assert {line[:9] for line in lines} <= {"<6>level=", "<4>level="}


def test_what_is_logged_has_a_level(fake: FakeServer, folder: Path) -> None:
    with Program(folder, f"unix://{folder}/none.sock", "--log-level", "warning") as proxy:
        wait_until(lambda: " no_runtime " in proxy.log())
    assert all(line.startswith("level=WARNING ") for line in proxy.log().splitlines())


def test_it_drains_and_serves_all_but_new_pulls_meanwhile(fake: FakeServer, start: Start) -> None:
    gate = Gate()
    prepare(fake, gate)
    fake.prepare("Version", cri_pb2.VersionResponse(runtime_name="fake"), repeat=True)
    proxy = start("--max-parallel-image-pulls", "1")
    futures = [proxy.kubelet.start_pull(f"a/b:{number}") for number in range(3)]
    wait_until(lambda: len(status(proxy)["waiting"]) == 2)
    proxy.terminate()
    wait_until(lambda: 'stopping drain="no limit"' in proxy.log())
    assert version(proxy) == "fake"
    with grpc.insecure_channel(proxy.endpoint, options=OPTIONS) as channel:
        late = Kubelet(channel, cgroup_parent="/late")
        answer = late.call(RUNTIME + "Version", cri_pb2.VersionRequest(), cri_pb2.VersionResponse)
        assert answer.runtime_name == "fake"
        refused: Any = late.start_pull("a/b:3")
        assert refused.exception(60) is not None
        assert refused.code() is grpc.StatusCode.UNAVAILABLE
        assert refused.details() == CLOSED.message
    assert len(status(proxy)["waiting"]) == 2
    gate.open.set()
    assert all(future.result(60).image_ref for future in futures)
    assert proxy.wait() == 0
    assert is_closed(proxy)


def test_a_call_under_way_is_not_cut_off_by_the_end(fake: FakeServer, start: Start) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slowly(request: Any, context: grpc.ServicerContext) -> cri_pb2.StatusResponse:
        begun.set()
        assert go_on.wait(60)
        return cri_pb2.StatusResponse(info={"a": "slow"})

    fake.prepare("Status", slowly)
    proxy = start()

    def ask_status() -> cri_pb2.StatusResponse:
        request = cri_pb2.StatusRequest()
        return proxy.kubelet.call(RUNTIME + "Status", request, cri_pb2.StatusResponse)

    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(ask_status)
        assert begun.wait(60)
        proxy.terminate()
        wait_until(lambda: "stopping" in proxy.log())
        assert not is_closed(proxy)
        go_on.set()
        assert call.result(60).info["a"] == "slow"
    assert proxy.wait() == 0


@pytest.mark.parametrize("flags", [(), ("--drain-timeout", "200ms")], ids=["signal", "timeout"])
def test_what_a_second_signal_or_the_timeout_ends_is_unavailable(
    fake: FakeServer, start: Start, flags: tuple[str, ...]
) -> None:
    gate = Gate()
    prepare(fake, gate)
    # Other calls, which are not there, may take that long.
    proxy = start(
        *flags, "--max-parallel-image-pulls", "1", code="app.run = partial(app.run, calls_s=1000.0)"
    )
    futures: list[Any] = [proxy.kubelet.start_pull(f"a/b:{number}") for number in range(3)]
    wait_until(lambda: len(status(proxy)["waiting"]) == 2)
    proxy.terminate()
    if not flags:
        wait_until(lambda: "stopping" in proxy.log())
        proxy.terminate()
    for future in futures:
        assert future.exception(60) is not None
        assert future.code() is grpc.StatusCode.UNAVAILABLE
    assert proxy.wait() == 0
    wait_until(lambda: gate.running == 0)
    assert "Traceback" not in proxy.log()
    (running,) = (line for line in proxy.log().splitlines() if " pull image=a/b:0 " in line)
    assert " outcome=Unavailable " in running
    assert f'error="{CLOSED.message}"' in running


def test_secrets_are_nowhere(fake: FakeServer, start: Start) -> None:
    gate = Gate()
    prepare(fake, gate)
    proxy = start("--max-parallel-image-pulls", "1")
    secrets = ("hunter2", "t0ken", "c2VjcmV0")
    auth = cri_pb2.AuthConfig(
        username="user", password=secrets[0], identity_token=secrets[1], auth=secrets[2]
    )
    futures = [proxy.kubelet.start_pull(f"a/b:{n}", pod("web"), auth=auth) for n in range(2)]
    wait_until(lambda: len(status(proxy)["waiting"]) == 1)
    shown = str(status(proxy))
    gate.open.set()
    assert all(future.result(60).image_ref for future in futures)
    for secret in secrets:
        assert secret not in proxy.log() + shown
        assert secret not in Path(f"/proc/{proxy.pid}/cmdline").read_text()
    wait_until(lambda: proxy.log().count(" pull image=a/b:") == 2)
    for secret in secrets:
        assert secret not in proxy.log()


def test_status_and_a_new_limit(start: Start, folder: Path) -> None:
    file = folder / "kubelet.yaml"
    file.write_text("serializeImagePulls: false\nmaxParallelImagePulls: 3\n")
    proxy = start("--kubelet-config", str(file))
    document = status(proxy)
    wanted = {"serializeImagePulls": False, "maxParallelImagePulls": 3, "limit": 3}
    assert document["kubelet"] == {"config": str(file), **wanted}
    assert (document["limit"], document["limitOrigin"]) == (3, str(file))
    for limit in (-1, "2", None, True, 1.5):
        with pytest.raises(PycrictlError, match="the limit must be a number"):
            admin.ask(str(proxy.admin_path), "set-limit", timeout_s=60, limit=limit)
    answer = admin.ask(str(proxy.admin_path), "set-limit", timeout_s=60, limit=4)
    assert answer == {"limit": 4, "before": 3}
    document = status(proxy)
    assert (document["limit"], document["limitOrigin"]) == (4, "pull-limiter set")


def test_nothing_is_loaded_once_it_has_settled(
    fake: FakeServer,
    start: Start,
    container: Pretended,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After an upgrade on disk, a late import would load a module of the newer version."""
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    gate = Gate()
    prepare(fake, gate)
    fake.offer("ListPodSandbox", sandboxes)
    proxy = start("--max-parallel-image-pulls=1")

    def loaded() -> list[str]:
        lines = [line for line in proxy.log().splitlines() if line.startswith("import time:")]
        names = [line.rpartition("|")[2].strip() for line in lines]
        return [name for name in names if name.startswith("pycrictl.proxy")]

    before = len(loaded())
    waiting = [proxy.kubelet.start_pull(f"a:{number}", WEB) for number in range(2)]
    wait_until(lambda: len(status(proxy)["waiting"]) == 1)
    url = ask(proxy, WEB.id)
    gate.open.set()
    assert [layer.phase for layer in read(url)[-1].layers] == ["done"]
    assert [pull.exception(60) for pull in waiting] == [None, None]
    copier = Copier(proxy)
    (tmp_path / "f").write_text("1")
    copier.into(tmp_path / "f", "/to")
    copier.out("/to", tmp_path / "back")
    copier.wait_until_idle()
    assert loaded()[before:] == []
