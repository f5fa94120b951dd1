"""``debug`` beside a container of the real containerd."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.waiting import wait_until

from .copying import Cp
from .forked import Program
from .images import busybox, text_file
from .lab import Lab

Left = tuple[list[str], set[str]]


@pytest.fixture
def bare(start_container: Callable[..., Cp], shared_lab: Lab) -> Cp:
    layout = shared_lab.layout
    files = [busybox("busybox-app"), text_file("etc/app.conf", "x\n")]
    image = layout.image("bare:1", [layout.layer(files)])
    return start_container("node", image, command=["/busybox-app", "sleep", "1000000"])


def left() -> Left:
    """Return what a session could leave behind: mounts and folders."""
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if "debug" in line]
    names = {path.name for path in Path("/tmp").glob("pycrictl-*debug*")}
    return mounts, names


def test_busybox_of_the_host(crictl: Program, bare: Cp) -> None:
    before = left()
    script = "cat /container/etc/app.conf; echo y > /container/new; ps; exit 7"
    done = crictl.run("debug", bare.id, "sh", "-c", script)
    assert done.status == 7, done.stderr
    assert done.stdout.startswith(b"x\nPID")
    assert b"/busybox-app sleep" in done.stdout
    assert (bare.root / "new").read_text() == "y\n"
    assert left() == before


def test_a_killed_session(command: list[str], crictl: Program, bare: Cp) -> None:
    before = left()
    words = [*command, "debug", bare.id, "sleep", "12345"]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL) as process:
        wait_until(lambda: sleepers("12345"))
        process.kill()
    wait_until(lambda: not sleepers("12345"))
    assert left() == before
    assert crictl.run("debug", bare.id, "nosuch").status == 127


def sleepers(word: str) -> list[bytes]:
    done = subprocess.run(["pgrep", "-fx", f"sleep {word}"], stdout=subprocess.PIPE)
    return done.stdout.split()
