"""``pycrictl cp`` with unusual containers: another user, another tar, hardly any programs."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from pycrictl.base.errors import CopyError
from pycrictl.copy import methods, over_exec
from pycrictl.copy.rules.policy import Rules
from pycrictl.runtime.cri.calls.client import CriClient
from tests.copy.trees import UNWATCHED
from tests.waiting import wait_until

from .copying import METHODS, Cp, Start, processes_below
from .images import busybox, busybox_files
from .lab import MIB, Lab

BUSYBOX = Path("/bin/busybox")


def huge(path: Path) -> Path:
    """Make a file so large that its copy does not end before the test does."""
    path.touch()
    os.truncate(path, 4096 * MIB)
    return path


def test_a_user_who_is_not_root(start_container: Start, folder: Path) -> None:
    cp = start_container("exec", user=1000)
    (folder / "f").write_text("1")
    assert "permission denied" in cp.refused(folder / "f", "C:/root/f")
    cp.ok(folder / "f", "C:/tmp/f")
    status = (cp.root / "tmp/f").stat()
    assert (status.st_uid, status.st_size) == (1000, 1)


@pytest.mark.parametrize("method", METHODS)
def test_a_distroless_container(
    shared_lab: Lab, start_container: Start, folder: Path, method: str
) -> None:
    """Whole trees are copied there and back in ``test_container_cp``."""
    image = shared_lab.layout.image("static:1", [shared_lab.layout.layer([busybox("busybox-app")])])
    cp = start_container(method, image, command=["/busybox-app", "sleep", "1000000"])
    for source, target, made in (
        (BUSYBOX, "C:/new", cp.root / "new"),
        ("C:/busybox-app", folder / "new", folder / "new"),
    ):
        if method == "exec":
            line = cp.refused(source, target)
            assert (line, made.exists()) == ("pycrictl: there is no tar in the container", False)
        else:
            cp.ok(source, target)
            assert made.read_bytes() == BUSYBOX.read_bytes()


def test_a_container_with_tar_only(shared_lab: Lab, start_container: Start, folder: Path) -> None:
    kept = ("bin/busybox", "bin/tar", "bin/sleep", "tmp")
    files = [file for file in busybox_files() if file.path.strip("/") in kept]
    image = shared_lab.layout.image("tar:1", [shared_lab.layout.layer(files)])
    cp = start_container("exec", image)
    cp.ok("C:/bin/busybox", folder)
    assert (folder / "busybox").stat().st_size > MIB
    line = cp.refused(folder / "busybox", "C:/new")
    assert line == "pycrictl: there is no stat in the container"


def tars(cp: Cp) -> list[int]:
    return [pid for pid, command in processes_below(cp.root).items() if command.startswith("tar ")]


def test_tar_that_is_killed(start_container: Start, folder: Path) -> None:
    """The runtime does not report the exit of a program that left input unread."""
    cp = start_container("exec")
    big = huge(folder / "big")

    def kill() -> None:
        wait_until(lambda: (cp.root / "tmp/new").exists() and tars(cp))
        for pid in tars(cp):
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with CriClient(cp.endpoint.removeprefix("unix://"), timeout_s=30) as client:
        method = over_exec.OverExec(over_exec.Remote(client, cp.id, silence_s=3))
        with pytest.raises(CopyError, match="the copy is incomplete") as info:
            methods.copy_to(method, [bytes(big)], b"/tmp/new", Rules(), UNWATCHED)
    killer.join()
    assert 'anything that had arrived was left in "/tmp/new"' in (info.value.hint or "")
