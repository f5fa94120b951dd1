"""``pycrictl cp`` with unusual containers: another user, another tar, hardly any program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pycrictl.copy import ends
from pycrictl.copy.exec import over_exec
from pycrictl.copy.exec.remote import Remote
from pycrictl.copy.rules.policy import Rules
from pycrictl.cri.calls.client import CriClient
from pycrictl.errors import CopyError
from tests.copy.trees import UNWATCHED, listing
from tests.waiting import wait_until

from .copying import PYCRICTL, Cp, Start, gnu, plain
from .images import File, busybox_files
from .lab import MIB
from .test_copy_node import make_tree

if TYPE_CHECKING:
    from .lab import Lab


def test_gnu_tar_keeps_times_exactly(shared_lab: Lab, start_container: Start, folder: Path) -> None:
    cp = start_container("exec", gnu(shared_lab))
    make_tree(folder / "tree")
    cp.ok("-a", folder / "tree", "C:/root")
    expected = listing(folder / "tree", ids=True)
    assert listing(cp.root / "root/tree", ids=True) == expected
    cp.ok("-a", "C:/root/tree", folder / "back")
    assert listing(folder / "back", ids=True) == expected
    code, _, stderr = cp("C:/", folder / "all")
    assert (folder / "all/bin/tar").stat().st_size > 0
    assert not (folder / "all/proc").exists(), (code, stderr)


def test_a_user_who_is_not_root(start_container: Start, folder: Path) -> None:
    cp = start_container("exec", user=1000)
    (folder / "f").write_text("1")
    assert "permission denied" in cp.refused(folder / "f", "C:/root/f")
    cp.ok(folder / "f", "C:/tmp/f")
    status = (cp.root / "tmp/f").stat()
    assert (status.st_uid, status.st_size) == (1000, 1)


def test_a_distroless_container(shared_lab: Lab, start_container: Start, folder: Path) -> None:
    binary = Path("/bin/busybox")
    only = File("busybox-app", binary.stat().st_size, lambda: binary.open("rb"), mode=0o755)
    image = shared_lab.layout.image("static:1", [shared_lab.layout.layer([only])])
    make_tree(folder / "tree")
    rpc = start_container("rpc", image, command=["/busybox-app", "sleep", "1000000"])
    for cp in (rpc, replace(rpc, method="node")):
        inside, back = f"C:/{cp.method}", folder / cp.method
        cp.ok(*cp.keep, folder / "tree", inside)
        cp.ok("-a", inside, back)
        assert plain(listing(back)) == plain(listing(folder / "tree"))
        cp.ok("C:/busybox-app", back)
        assert (back / "busybox-app").read_bytes() == binary.read_bytes()
    assert (folder / "node/f").stat().st_mtime_ns == (folder / "tree/f").stat().st_mtime_ns
    cp = replace(rpc, method="exec")
    for words in (
        (binary, "C:/new"),
        ("C:/busybox-app", folder / "new"),
        ("C:/busybox-app", "-"),
    ):
        assert cp.refused(*words) == "pycrictl: there is no tar in the container"
    assert not (folder / "new").exists()
    assert not (cp.root / "new").exists()


def test_a_container_with_tar_only(shared_lab: Lab, start_container: Start, folder: Path) -> None:
    kept = ("bin/busybox", "bin/tar", "bin/sleep", "tmp")
    files = [file for file in busybox_files() if file.path.strip("/") in kept]
    image = shared_lab.layout.image("tar:1", [shared_lab.layout.layer(files)])
    cp = start_container("exec", image)
    cp.ok("C:/bin/busybox", folder)
    assert (folder / "busybox").stat().st_size > MIB
    line = cp.refused(folder / "busybox", "C:/new")
    assert line == "pycrictl: there is no stat in the container"


def test_auto_tells_which_method_it_took(start_container: Start, folder: Path) -> None:
    cp = start_container("auto", pod_name="auto")
    (folder / "f").write_text("1")
    status, stdout, stderr = cp("--progress", "json", folder / "f", "C:/tmp/f")
    assert (status, stderr) == (0, "")
    assert json.loads(stdout.splitlines()[-1])["files"] == 1
    command = [*PYCRICTL, "-t", "30s", "-r", cp.endpoint, "--debug", "cp"]
    done = subprocess.run(
        [*command, f"{cp.id[:13]}:/tmp/f", folder / "g"],
        capture_output=True,
        check=True,
        text=True,
    )
    log = [line.partition(" = ")[2] for line in done.stderr.splitlines() if ".copy: = " in line]
    assert log[0] == "trying the method rpc"
    assert log[1].startswith("the method rpc cannot be used: ")
    assert log[2:] == ["trying the method node", "the method node is used"]
    # What went wrong is no reason to try another way.
    failed = subprocess.run(
        [*command, "auto/main:/nowhere", folder / "g"],
        capture_output=True,
        check=False,
        text=True,
    )
    assert failed.returncode == 1
    assert "trying the method exec" not in failed.stderr
    assert 'cannot copy "/nowhere": no such file or directory' in failed.stderr


def test_tar_that_is_killed(
    start_container: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime does not report the end of a program that has left input unread."""
    monkeypatch.setattr(over_exec, "_IDLE_S", 3.0)
    cp = start_container("exec")
    with (folder / "big").open("wb") as file:
        file.truncate(4096 * MIB)

    def kill() -> None:
        wait_until(lambda: (cp.root / "tmp/new").exists() and kill_tar(cp) > 0)

    killer = threading.Thread(target=kill)
    killer.start()
    with CriClient(cp.endpoint.removeprefix("unix://"), timeout_s=30) as client:
        method = over_exec.OverExec(Remote(client, cp.id))
        with pytest.raises(CopyError, match="the copy is incomplete") as info:
            ends.copy_to(method, bytes(folder / "big"), b"/tmp/new", Rules(), UNWATCHED)
    killer.join()
    assert info.value.hint == 'what had arrived was left in "/tmp/new"'


def kill_tar(cp: Cp) -> int:
    pids = [pid for pid, command in cp.processes().items() if command.startswith("tar ")]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return len(pids)
