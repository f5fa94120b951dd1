"""The playground on a terminal: what it offers, and that nothing of it outlives its shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pycrictl.base.processes import is_running
from tests.cli.shells import Shell
from tests.support.pages import FIRST, README, blocks, statements
from tests.waiting import wait_until

from .machine import ROOT, WAIT_S
from .playground import GREETING
from .sweep import cgroups, mount_points, processes

PROMPT = rb"playground# "


@contextmanager
def playground() -> Iterator[tuple[Shell, list[Any]]]:
    """Enter a playground; yield its shell and the settings that the terminal had before."""
    env = {**os.environ, "TERM": "dumb", "PYCRICTL_COMPLETION_TIMEOUT": "50s"}
    shell = Shell([sys.executable, "-m", "tests.e2e.node.playground"], ROOT, env)
    settings = termios.tcgetattr(shell.terminal)
    try:
        shell.read(rb"Six things to try:.*" + PROMPT)
        yield shell, settings
    finally:
        shell.close()


@pytest.mark.node
def test_nothing_is_left_when_its_terminal_is_closed() -> None:
    with playground() as (shell, _):
        shell.run("trap '' HUP; (while :; do sleep 0.1; done) & trap - HUP")
        text = shell.run('echo "<$PWD> <$$> <$!>"')
        match = re.search(r"<(/\S+)/desk> <(\d+)> <(\d+)>\r", text)
        assert match, text
        folder, pids = Path(match[1]), [int(match[2]), int(match[3])]
        assert processes(folder)
        assert mount_points(folder)
        shell.type("pycrictl image-pull-progress\n")
        shell.read(rb"jobs/report queued")
        shell.hang_up()
        shell.process.wait(WAIT_S)
        check_that_nothing_is_left(folder)
        assert [pid for pid in pids if is_running(pid)] == []


def check_that_nothing_is_left(folder: Path) -> None:
    wait_until(lambda: not (processes(folder) or folder.exists()))
    assert mount_points(folder) == []
    assert cgroups(folder.name) == []


@pytest.mark.node
def test_what_the_greeting_says() -> None:
    with playground() as (shell, settings):

        def interrupted(typed: str, shown: bytes) -> str:
            shell.type(typed)
            printed = shell.read(shown)[0].decode()
            shell.type("\x03")
            shell.read(PROMPT)  # input before the prompt would be lost
            return printed

        tries = {
            "pycrictl image-pull-progress": "registry.example/shop/cache:3",
            "pycrictl why jobs/report": "is queued, 1st, behind",
            "pycrictl pull-limiter set 2": "limit 1 -> 2",
            "pycrictl why default/api": "keeps crashing: exit code 3",
            "pycrictl cp web:/srv/index.html .": "copied 1 file",
            "pycrictl logs -f <Tab>": "default/api\r\nconnecting to db:5432",
        }
        for line, expected in tries.items():
            if line == "pycrictl image-pull-progress":
                shown = interrupted(f"{line}\n", rb"jobs/report queued, 1st, behind \S+:3")
            elif line == "pycrictl logs -f <Tab>":
                shell.type("pycrictl logs -f def\ta\t\n")  # the first letters match two pods
                # The container exits, and the command ends.
                printed = shell.read(rb"logs -f def\a.*no database\r.*" + PROMPT)[0].decode()
                shown = printed.replace("\a", "")
            else:
                shown = shell.run(line)
            assert expected in shown, line
        assert {*re.findall(r"^  (pycrictl .*?)  ", GREETING, re.M)} == {*tries}
        for line in readme_examples():
            # Both watch the slow pull, which does not end here.
            if line in ("pycrictl image-pull-progress", "pycrictl image-pull-progress --follow"):
                interrupted(f"{line}\n", rb"cache:3")
            else:
                status = 1 if line == "pycrictl why default/api" else 0
                assert f"<{status}>" in shell.run(f'{line}; echo "<$?>"'), line
        assert "/usr/local/bin/pycrictl" in shell.run("type pycrictl")
        assert "index.html" in shell.run("ls")
        # Ctrl-D works only after a prompt: before, the terminal turns it into a NUL.
        shell.type("pwd\n")
        folder = Path(shell.read(rb"(/\S+)/desk\r\n" + PROMPT)[1].decode())
        shell.type("\x04")
        assert shell.process.wait(WAIT_S) == 0
        assert termios.tcgetattr(shell.terminal) == settings
        check_that_nothing_is_left(folder)


def readme_examples() -> list[str]:
    """Return the README's commands for a node that has a proxy, without those of other hosts."""
    use_it, node_side = (
        README.partition(f"\n## {title}\n")[2] for title in ("Use it", "The node side")
    )
    shown = blocks(FIRST) + blocks(use_it.partition("\n## ")[0]) + blocks(node_side)
    lines = [line for block in shown for line in statements(block)]
    return [
        line
        for line in lines
        if line.startswith("pycrictl ") and not line.startswith(("pycrictl -H", "pycrictl proxy"))
    ]


def test_it_needs_a_terminal() -> None:
    words = [sys.executable, "-m", "tests.e2e.node.playground"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "playground: it needs a terminal\n")


def test_a_machine_that_cannot_run_the_node() -> None:
    words = [sys.executable, "-m", "tests.e2e.node.demo"]
    done = subprocess.run(words, env={"PATH": "/nowhere"}, capture_output=True, text=True)
    assert done.returncode == 1
    missing = "the node does not work here: .*docker-registry.*"
    why = "the throwaway node needs Linux and root" if os.geteuid() else missing
    assert re.fullmatch(rf"demo: {why}\n", done.stderr)
