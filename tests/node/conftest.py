"""The program on the throwaway node, with a container to have sessions with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .kubelet import Pod
from .lab import Lab
from .programs import Crictl, start_container


@pytest.fixture
def command(lab: Lab) -> list[str]:
    return [sys.executable, "-m", "pycrictl", "-t", "20s", "-r", lab.node.endpoint]


@pytest.fixture
def crictl(command: list[str]) -> Crictl:
    def run(*words: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        if stdin is None:  # not ours, and at its end
            with Path(os.devnull).open("rb") as nothing:
                return subprocess.run([*command, *words], stdin=nothing, capture_output=True)
        return subprocess.run([*command, *words], input=stdin, capture_output=True)

    return run


@pytest.fixture
def pod(lab: Lab) -> Pod:
    return lab.node.kubelet.run_pod("sessions")


@pytest.fixture
def container(lab: Lab, pod: Pod) -> str:
    return start_container(lab, pod, "main")
