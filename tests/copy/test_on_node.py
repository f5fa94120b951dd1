"""Finding a container's root directory, with processes of this machine and no runtime."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import CopyError, FailedPrecondition, Unimplemented
from pycrictl.copy import methods, on_node
from pycrictl.copy.on_node import ContainerRoot, FirstProcess, OnNode
from pycrictl.copy.tree.places import NOBODY, IdMap
from pycrictl.copy.tree.walk import Watch
from tests.copy.trees import KEEP, PLAIN, UNWATCHED, check_wildcards, copy_in, ignore
from tests.support.containers import ID, start, stop


@pytest.fixture
def container(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    (tmp_path / "root/etc").mkdir(parents=True)
    (tmp_path / "root/etc/f").write_text("of the container")
    with start(tmp_path / "root") as process:
        yield process


def told(pid: int, **others: int) -> Callable[[], FirstProcess]:
    """Return a ``locate`` that always reports the same process."""
    return lambda: FirstProcess(ID, pid, 1, **others)


def has_stopped(locate: Callable[[], FirstProcess]) -> None:
    with pytest.raises(FailedPrecondition, match="has stopped"):
        ContainerRoot(locate)


@pytest.mark.root
def test_processes_that_are_no_container() -> None:
    with pytest.raises((CopyError, PermissionError)):
        ContainerRoot(told(1))  # even root has no access if the node is a container
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", "echo ready && exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for pid in (os.getpid(), process.pid):
            with pytest.raises(CopyError, match="shares the file systems of the node"):
                ContainerRoot(told(pid))
        stop(process)
        has_stopped(told(process.pid))


@pytest.mark.root
def test_a_number_that_is_used_again(container: subprocess.Popen[bytes]) -> None:
    """The runtime must report the same process before and after its root is opened."""
    first = FirstProcess(ID, container.pid, 1)
    for second in (
        first._replace(pid=os.getpid()),
        first._replace(started_at_ns=2),
        first._replace(container_id="d" * 64),
    ):
        has_stopped(iter([first, second]).__next__)
    with pytest.raises(StopIteration):  # errors of the second query are passed on
        ContainerRoot(iter([first]).__next__)

    def answers() -> Iterator[FirstProcess]:
        yield first
        stop(container)
        yield first

    has_stopped(answers().__next__)


OTHER = f"0::/k8s.io/{'d' * 64}\n"


@pytest.mark.root
@pytest.mark.parametrize(
    ("theirs", "ours", "is_its_own"),
    [
        (f"0::/k8s.io/{ID}\n", "0::/\n", True),
        (f"12:cpu:/pod/{ID}\n1:name=systemd:/x\n", "0::/\n", True),
        ("0::/\n", "0::/\n", True),
        (OTHER, "0::/\n", False),
        (OTHER, OTHER, True),
        (f"{OTHER}/{ID}", OTHER, True),
        (f"{OTHER}/{'e' * 64}", OTHER, False),
    ],
)
def test_the_cgroup_of_another_container(
    container: subprocess.Popen[bytes], theirs: str, ours: str, is_its_own: bool
) -> None:
    with ContainerRoot(told(container.pid)) as root:
        stopped = pytest.raises(FailedPrecondition, match="has stopped")
        with nullcontext() if is_its_own else stopped:
            root._check_cgroup(theirs, ours)


@pytest.mark.root
def test_wildcards(container: subprocess.Popen[bytes], tmp_path: Path) -> None:
    def out(path: str, local: Path) -> None:
        method = OnNode(told(container.pid))
        methods.copy_from(method, path.encode(), os.fsencode(local), KEEP, UNWATCHED)

    check_wildcards(out, tmp_path / "root/etc", "/etc", tmp_path / "here")
    with pytest.raises(CopyError, match="is on procfs"):
        out("/old/proc/*", tmp_path / "none")


# User namespaces


def owners(path: Path, *names: str) -> list[tuple[int, int]]:
    statuses = [(path / name).lstat() for name in names]
    return [(status.st_uid, status.st_gid) for status in statuses]


@pytest.mark.root
def test_a_user_namespace() -> None:
    """IDs inside and outside differ; an owner without an ID inside makes the copy fail."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="pct-") as name:
        top = Path(name)
        top.chmod(0o755)
        for folder in ("root/old", "tree/sub"):
            (top / folder).mkdir(parents=True)
        (top / "tree/sub/f").write_text("1")
        (top / "tree/l").symlink_to("sub/f")
        os.chown(top / "tree/sub/f", 1000, 2000)
        for path in (top / "root", top / "root/old"):
            os.chown(path, 100_000, 100_000)
        inside, tree = top / "root", os.fsencode(top / "tree")
        with start(inside, users="0 100000 65536\n") as process:
            method = OnNode(told(process.pid))
            methods.copy_to(
                OnNode(told(process.pid, uid=5, gid=6)), [tree], b"/a", PLAIN, UNWATCHED
            )
            assert owners(inside, "a", "a/sub", "a/sub/f", "a/l") == [(100_005, 100_006)] * 4
            methods.copy_to(method, [tree], b"/b", KEEP, UNWATCHED)
            assert owners(inside, "b", "b/sub/f") == [(100_000, 100_000), (101_000, 102_000)]
            methods.copy_from(method, b"/b", os.fsencode(top / "c"), KEEP, UNWATCHED)
            assert owners(top, "c/sub/f") == [(1000, 2000)]
            os.chown(top / "tree/sub/f", 70_000, 0)
            with pytest.raises(CopyError, match="no user or group 70000"):
                methods.copy_to(method, [tree], b"/d", KEEP, UNWATCHED)
            assert sorted(path.name for path in inside.iterdir()) == ["a", "b", "old"]


def test_id_maps() -> None:
    ids = IdMap.parse("         0     100000      1000\n      5000          7          1\nbroken\n")
    assert [ids.to_host(inside) for inside in (0, 999, 5000)] == [100000, 100999, 7]
    assert [ids.to_container(outside) for outside in (100000, 7, 8, 0)] == [0, 5000, NOBODY, NOBODY]
    for unknown in (1000, 4999, 5001, 2**32):
        with pytest.raises(CopyError, match=f"no user or group {unknown}"):
            ids.to_host(unknown)


# What the runtime reports


def locate(info: Any, *, state: int = cri_pb2.CONTAINER_RUNNING, pod: str = "") -> FirstProcess:
    """Locate with these answers; the pod may be listed only if the runtime type is unknown."""
    asked = []

    def call(method: str, _request: object) -> Any:
        asked.append(method)
        if method == "ListPodSandbox":
            sandbox = cri_pb2.PodSandbox(id="p", runtime_handler=pod)
            return cri_pb2.ListPodSandboxResponse(items=[sandbox])
        answer = cri_pb2.ContainerStatusResponse()
        answer.status.id, answer.status.started_at = ID, 99
        answer.status.state = state  # type: ignore[assignment]  # a number
        if info is not None:
            answer.info["info"] = info if isinstance(info, str) else json.dumps(info)
        return answer

    root = on_node.locate(call, ID)
    assert asked == ["ContainerStatus", *["ListPodSandbox"] * bool(pod)]
    return root


USER = {"process": {"user": {"uid": 3, "gid": 4}}}


@pytest.mark.parametrize(
    ("info", "pod", "owner"),
    [
        ({"runtimeType": "io.containerd.runc.v2", "runtimeSpec": USER}, "", (3, 4)),
        ({"sandboxID": "p", "privileged": False}, "crun", (0, 0)),
        ({"runtimeSpec": {"process": {"user": {"uid": "x", "gid": 4}}}}, "", (0, 4)),
        ({"runtimeSpec": 1}, "", (0, 0)),
        ({"runtimeSpec": {"process": []}}, "", (0, 0)),
    ],
)
def test_runtimes_tell(info: dict[str, Any], pod: str, owner: tuple[int, int]) -> None:
    assert locate({"pid": 77, **info}, pod=pod) == FirstProcess(ID, 77, 99, *owner)


OWN_KERNEL = (Unimplemented, "kernel of its own")
NO_PROCESS = (Unimplemented, "does not report the process")
NOT_RUNNING = (FailedPrecondition, "is not running")


@pytest.mark.parametrize(
    ("info", "more", "refusal"),
    [
        ({"runtimeType": "io.containerd.kata.v2"}, {}, OWN_KERNEL),
        ({"runtimeType": "io.containerd.runsc.v1"}, {}, OWN_KERNEL),
        ({"runtimeType": "io.containerd.somethingnew.v1"}, {}, OWN_KERNEL),
        ({"sandboxID": "p"}, {"pod": "kata-qemu"}, OWN_KERNEL),
        ({"sandboxID": "p"}, {"pod": "gVisor"}, OWN_KERNEL),
        *((info, {}, NO_PROCESS) for info in (None, "", "{", "[]", "1", "[" * 100_000)),
        *(({"pid": pid}, {}, NO_PROCESS) for pid in (0, 1, -5, "77", None, 7.5, [77], True)),
        *(({}, {"state": state}, NOT_RUNNING) for state in cri_pb2.ContainerState.values()[2:]),
        ({}, {"state": cri_pb2.CONTAINER_CREATED}, NOT_RUNNING),
    ],
    ids=lambda value: str(value)[:20],
)
def test_processes_that_are_not_looked_for(
    info: Any, more: dict[str, Any], refusal: tuple[type[Exception], str]
) -> None:
    with pytest.raises(refusal[0], match=refusal[1]):
        locate({"pid": 77, **info} if isinstance(info, dict) else info, **more)


# Copies


@pytest.mark.root
def test_a_container_that_stops_halfway(container: subprocess.Popen[bytes], tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(range(256)) * 400)
    (tmp_path / "here").mkdir()
    for copy, source, target, process in (
        (copy_in, f"{tmp_path}/big", "/etc/f", container),
        (methods.copy_from, "/etc", f"{tmp_path}/here", start(tmp_path / "root")),
    ):
        watch = Watch(lambda _, process=process: stop(process), ignore)  # type: ignore[misc]
        with pytest.raises(FailedPrecondition, match="has stopped"):
            copy(OnNode(told(process.pid)), source.encode(), target.encode(), PLAIN, watch)
    assert [path.name for path in (tmp_path / "root/etc").iterdir()] == ["f"]
    assert (tmp_path / "root/etc/f").read_text() == "of the container"
    assert list((tmp_path / "here").iterdir()) == []


@pytest.mark.root
@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ("--bounding-set -sys_ptrace", "this program may not inspect the runtime's process: it"),
        ("--euid 65534", "this user cannot access the file systems of containers"),
    ],
)
def test_without_the_rights_to_look_at_containers(limits: str, said: str) -> None:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        path = f"{folder}/s"
        listener.bind(path)
        listener.listen()
        on_node.check_node(path)
        code = f"from pycrictl.copy import on_node; on_node.check_node({path!r})"
        words = ("setpriv", *limits.split(), sys.executable, "-c", code)
        done = subprocess.run(words, stderr=subprocess.PIPE, text=True)
    assert f"Unimplemented: {said}" in done.stderr.splitlines()[-1]
