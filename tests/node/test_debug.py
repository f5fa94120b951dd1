"""``debug`` beside a container of the real containerd."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.node.programs import Crictl

pytestmark = pytest.mark.node


def traces() -> set[Path]:
    return set(Path("/tmp").glob("pycrictl-debug-*"))


def test_a_shell_beside_a_container(crictl: Crictl, container: str) -> None:
    before = traces()
    done = crictl("debug", container, "sh", "-c", "ls /; ls /container; ps; exit 7")
    assert done.returncode == 7, done.stderr
    words = done.stdout.decode().split()
    assert {"bin", "container", "proc"} <= set(words)
    assert "sleep" in done.stdout.decode() or "PID" in words
    assert traces() == before


def test_what_it_sees_is_the_containers(crictl: Crictl, container: str) -> None:
    done = crictl("debug", container, "sh", "-c", "echo x > /container/tmp-debug && ls /container")
    assert done.returncode == 0, done.stderr
    inside = crictl("exec", container, "/bin/busybox", "cat", "/tmp-debug")
    assert inside.stdout == b"x\n"
