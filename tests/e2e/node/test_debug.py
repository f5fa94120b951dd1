"""``debug`` beside a container of the real containerd."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.waiting import wait_until

from .copying import Cp
from .forked import Program
from .images import File, busybox, text_file
from .lab import Lab

Left = tuple[list[str], set[str], int]


@pytest.fixture
def bare(start_container: Callable[..., Cp], shared_lab: Lab) -> Cp:
    layout = shared_lab.layout
    files = [busybox("busybox-app"), text_file("etc/app.conf", "x\n")]
    image = layout.image("bare:1", [layout.layer(files)])
    return start_container("node", image, command=["/busybox-app", "sleep", "1000000"])


@pytest.fixture
def tools(shared_lab: Lab) -> str:
    """An image of two layers, with a script that needs the image's interpreter and environment."""
    layout = shared_lab.layout
    more = [
        text_file("opt/look", "#!/bin/sh\necho $WHO; cat /container/etc/app.conf\n", 0o755),
        File("etc/hosts", link_to="/tmp/elsewhere"),
    ]
    settings = {"Env": ["PATH=/opt:/bin", "WHO=tools"]}
    image = layout.image("tools:1", [shared_lab.base, layout.layer(more)], config=settings)
    return shared_lab.push(image)


def left(lab: Lab) -> Left:
    """Return what a session could leave behind: mounts, folders, and leases that hold views."""
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if "debug" in line]
    names = {path.name for path in Path("/tmp").glob("pycrictl-*debug*")}
    return mounts, names, sum(name.startswith("pycrictl") for name in lab.node.store.leases())


def test_busybox_of_the_host(crictl: Program, bare: Cp, shared_lab: Lab) -> None:
    before = left(shared_lab)
    script = "cat /container/etc/app.conf; echo y > /container/new; ps; exit 7"
    done = crictl.run("debug", bare.id, "sh", "-c", script)
    assert done.status == 7, done.stderr
    assert done.stdout.startswith(b"x\nPID")
    assert b"/busybox-app sleep" in done.stdout
    assert (bare.root / "new").read_text() == "y\n"
    assert left(shared_lab) == before


def test_tools_of_an_image(crictl: Program, bare: Cp, tools: str, shared_lab: Lab) -> None:
    before, inside = left(shared_lab), set((bare.root / "etc").iterdir())
    for _ in range(2):  # pulled first, then already present
        done = crictl.run(
            "debug", "--tools", tools, bare.id, "sh", "-c", "look; rm /opt/look; exit 7"
        )
        assert (done.status, done.stdout) == (7, b"tools\nx\n"), done.stderr
    assert left(shared_lab) == before
    assert set((bare.root / "etc").iterdir()) == inside
    done = crictl.run("debug", "--tools", tools, bare.id, "htop")
    assert done.status == 127
    assert "htop" in done.stderr


@pytest.mark.parametrize("next_one", [["cp", "--sweep"], ["debug", "--tools"]])
def test_a_killed_session(
    command: list[str],
    crictl: Program,
    bare: Cp,
    tools: str,
    shared_lab: Lab,
    next_one: list[str],
) -> None:
    before = left(shared_lab)
    words = [*command, "debug", "--tools", tools, bare.id, "sleep", "12345"]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL) as process:
        wait_until(lambda: sleepers("12345"))
        process.kill()
    wait_until(lambda: not sleepers("12345"))
    assert left(shared_lab)[2] == 1
    more = [tools, bare.id, "true"] if "debug" in next_one else []
    done = crictl.run(*next_one, *more)
    assert done.status == 0
    assert b"killed debug session" in done.stdout or more
    assert left(shared_lab) == before


def sleepers(word: str) -> list[bytes]:
    done = subprocess.run(["pgrep", "-fx", f"sleep {word}"], stdout=subprocess.PIPE)
    return done.stdout.split()
