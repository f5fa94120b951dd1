"""A command on one host is like one that runs here, and ends with its client."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from _thread import interrupt_main
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.hosts.session import Process
from tests.cli.run import Run
from tests.fakecri import FakeServer
from tests.hosts.answers import containers
from tests.hosts.shell import Shell
from tests.hosts.sshd import Host, Hosts, descendants
from tests.waiting import WAIT_S, wait_until


@contextmanager
def endless(machines: Hosts, host: Host) -> Iterator[subprocess.Popen[str]]:
    """Start a command that does not end, and yield when it runs on the host."""
    words = machines.words("-H", host.name, "ps", "--watch")
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=machines.environ,
    ) as client:
        try:
            assert client.stdout is not None
            assert "web" in client.stdout.readline() + client.stdout.readline()
            assert host.processes()
            yield client
        finally:
            client.kill()


@pytest.fixture
def host(machines: Hosts, fake: FakeServer) -> Host:
    fake.offer("ListContainers", containers("web", "db"))
    return machines.hosts["n1"]


@pytest.mark.parametrize(
    "words",
    [["ps"], ["ps", "-o", "json"], ["ps", "-q"], ["ps", "--nonsense"], ["exec"], ["nonsense"]],
)
def test_output_and_status_are_those_of_a_local_run(
    machines: Hosts, host: Host, fake: FakeServer, words: list[str]
) -> None:
    done = machines.run("-H", "n1", *words)
    local = Run("-r", fake.endpoint, *words)
    assert (done.stdout, done.stderr) == (local.stdout, local.stderr)
    assert done.returncode == local.code


def test_global_options_reach_the_host(machines: Hosts, host: Host, fake: FakeServer) -> None:
    done = machines.run("-D", "-H", "n1", "--timeout=7s", "ps")
    assert "DEBUG pycrictl.cri" in done.stderr
    assert 6 < (fake.calls[-1].deadline_s or 0) < 7.5


def test_the_host_may_be_named_by_a_variable(machines: Hosts, host: Host) -> None:
    done = machines.run("ps", "-q", environ={"PYCRICTL_HOST": "n1"})
    assert done.stdout == f"{'1' * 64}\n{'2' * 64}\n"


def test_a_kept_connection_is_used_at_once(machines: Hosts, host: Host) -> None:
    """By few modules; also then, outputs may be closed or full, and the program there gone."""

    def run(command: str) -> subprocess.CompletedProcess[str]:
        client = f"{sys.executable} -X importtime -m pycrictl -H n1"
        words = ["bash", "-c", f"set -o pipefail; {client} {command}"]
        return subprocess.run(
            words, capture_output=True, text=True, check=False, env=machines.environ
        )

    assert machines.run("-H", "n1", "ps").returncode == 0
    done = run("ps -q")
    assert done.returncode == 0, done.stderr[-500:]
    assert done.stdout == f"{'1' * 64}\n{'2' * 64}\n"
    assert not {"typer", "typing"} & {line.split()[-1] for line in done.stderr.splitlines()}
    assert run("ps --watch | true").returncode == 128 + signal.SIGPIPE
    done = run("ps > /dev/full")
    assert "pycrictl: cannot write to standard output: no space left on device" in done.stderr
    assert done.returncode == 1
    for folder in host.cache.iterdir():
        shutil.rmtree(folder)
    assert run("ps").returncode == 1  # the client of this test has no program to send
    assert machines.run("-H", "n1", "ps", "-q").returncode == 0


def test_standard_input_of_a_loop_is_left_alone(machines: Hosts, host: Host) -> None:
    client = " ".join(machines.words("-H", "n1", "ps", "-q"))
    done = subprocess.run(
        ["sh", "-c", f"printf 'a\\nb\\n' | while read x; do {client} | wc -l; done"],
        capture_output=True,
        text=True,
        check=True,
        env=machines.environ,
    )
    assert done.stdout.split() == ["2", "2"]


def test_a_host_behind_a_host_is_refused(machines: Hosts, host: Host) -> None:
    done = machines.run("-H", "n2", "ps", environ={"PYCRICTL_ON_HOST": "n1"})
    assert done.returncode == 1
    assert done.stderr.startswith('pycrictl: --host within --host: this already runs on "n1"')


@pytest.mark.parametrize("words", [["--sudo"], ["--no-keep"], ["--max-parallel-hosts=2"]])
def test_options_for_hosts_need_one(words: list[str]) -> None:
    done = Run(*words, "ps")
    assert (done.code, done.stderr.splitlines()[0][-11:]) == (1, "need --host")


def test_a_list_of_images_is_this_machines(machines: Hosts, fake: FakeServer) -> None:
    listed = machines.folder / "images.txt"
    listed.write_text("a:1\nb:2\n")
    fake.offer("PullImage", lambda request, _: cri_pb2.PullImageResponse(image_ref="r"))
    fake.offer("ImageStatus", cri_pb2.ImageStatusResponse())
    fake.offer("ListImages", cri_pb2.ListImagesResponse())
    for words, stdin in (["--from", str(listed)], ""), (["--from=-"], "a:1\nb:2\n"):
        fake.calls.clear()
        done = machines.run("-H", "n1", "pull", *words, stdin=stdin)
        assert [line.split()[0] for line in done.stdout.splitlines()] == ["IMAGE", "a:1", "b:2"]
        pulled = [call.request.image.image for call in fake.calls if call.method == "PullImage"]
        assert pulled == ["a:1", "b:2"]
    done = machines.run("-H", "n1", "pull", "--from", "/nonexistent")
    assert done.stderr == 'pycrictl: cannot read "/nonexistent": no such file or directory\n'


def test_configurations_of_pods_are_this_machines(machines: Hosts, fake: FakeServer) -> None:
    config = machines.folder / f"pod {machines.folder.name}.json"
    config.write_text(json.dumps({"metadata": {"name": "p", "namespace": "n", "uid": "u"}}))
    fake.offer("RunPodSandbox", cri_pb2.RunPodSandboxResponse(pod_sandbox_id="1" * 64))
    done = machines.run("-H", "n1", "runp", "--runtime", "x", str(config))
    assert (done.stdout, done.returncode) == ("1" * 64 + "\n", 0)
    (request,) = [call.request for call in fake.calls if call.method == "RunPodSandbox"]
    assert (request.config.metadata.name, request.runtime_handler) == ("p", "x")
    assert not [*Path("/tmp").glob(f"pycrictl-*/*/{config.name}")]


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)],
)
def test_a_command_ends_with_its_client(
    machines: Hosts, host: Host, number: signal.Signals, status: int
) -> None:
    with endless(machines, host) as client:
        client.send_signal(number)
        assert client.wait(WAIT_S) == status
        wait_until(lambda: not host.processes())


def test_a_signal_right_before_a_wait_for_data_is_not_lost() -> None:
    process = Process(["sleep", str(WAIT_S)], None, {})

    def wait_for_data() -> None:
        # As such a signal does, this interrupts no system call.
        threading.Timer(0.3, interrupt_main).start()
        next(process.pieces(), None)

    with pytest.raises(KeyboardInterrupt):
        wait_for_data()
    assert process.close() == 128 + signal.SIGTERM  # it was still running


def test_a_command_ends_when_nothing_is_heard_of_its_client(fresh: Hosts, fake: FakeServer) -> None:
    """As when a laptop is closed: the connection stays open, but nothing comes."""
    fake.offer("ListContainers", containers("web", "db"))
    host = fresh.add("h")
    host.serve(fake.path)
    with endless(fresh, host):
        for pid in (kept := fresh.kept()):
            os.kill(pid, signal.SIGSTOP)
        assert kept
        wait_until(lambda: not host.processes())
        for pid in kept:
            os.kill(pid, signal.SIGKILL)


def test_a_host_that_dies_is_one_line(fresh: Hosts, fake: FakeServer) -> None:
    fake.offer("ListContainers", containers("web", "db"))
    host = fresh.add("h")
    host.serve(fake.path)
    with endless(fresh, host) as client:
        host.crash()
        _, stderr = client.communicate(timeout=WAIT_S)
        assert client.returncode == 1
        assert stderr.startswith("pycrictl: h: the connection has ended")
        assert len(stderr.splitlines()) == 1
    done = fresh.run("-H", "h", "ps")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Connection refused" in done.stderr


def test_a_terminal_is_handed_on(machines: Hosts, host: Host, fake: FakeServer) -> None:
    fake.offer("ListContainers", containers("web" + "x" * 60, "db", image="i" * 60))
    assert machines.run("-H", "n1", "ps").returncode == 0  # the first contact has a line of its own
    with Shell(machines.environ, machines.words("-H", "n1")) as shell:
        for columns in (100, 60):
            shell.resize(24, columns)
            lines = shell.run("$CLIENT ps").splitlines()
            assert lines[0].startswith("NAME")
            assert columns - 30 < max(map(len, lines)) <= columns
            assert lines[-1] == "status 0"


def test_ctrl_c_and_ctrl_z_are_those_of_a_local_run(machines: Hosts, host: Host) -> None:
    with Shell(machines.environ, machines.words("-H", "n1")) as shell:
        before = shell.run("stty -a")
        shell.type("$CLIENT ps --watch\n")
        shell.expect("web")
        shell.type("\x1a")
        shell.expect(r"Stopped.*\n(.*\n)*\$ $")
        assert shell.run("stty -a") == before
        shell.type("fg\n")
        shell.expect("web")
        shell.type("\x03")
        shell.expect(r"\$ $")
        assert shell.run("true").endswith("status 0\n")
        assert shell.run("stty -a") == before
    wait_until(lambda: not host.processes())


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "closed"])
def test_a_command_on_a_terminal_ends_with_it_and_its_client(
    machines: Hosts, host: Host, is_killed: bool
) -> None:
    with Shell(machines.environ, machines.words("-H", "n1")) as shell:
        shell.type("$CLIENT ps --watch\n")
        shell.expect("web")
        assert host.processes()
        if is_killed:
            client, *_ = descendants(shell.pid)
            os.kill(client, signal.SIGKILL)
            shell.expect("Killed")
            wait_until(lambda: not host.processes())
    wait_until(lambda: not host.processes())


def test_the_folder_of_connections_is_private(machines: Hosts, host: Host) -> None:
    machines.run("-H", "n1", "ps")
    folder = Path(machines.environ["XDG_RUNTIME_DIR"], "pycrictl")
    assert folder.stat().st_mode & 0o777 == 0o700
    open_folder = machines.folder / "open"
    (open_folder / "pycrictl").mkdir(parents=True)
    os.chmod(open_folder / "pycrictl", 0o777)  # noqa: PTH101
    done = machines.run("-H", "n1", "ps", environ={"XDG_RUNTIME_DIR": str(open_folder)})
    assert done.returncode == 1
    assert "is a link or open to other users" in done.stderr
