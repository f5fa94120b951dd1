"""Fixtures: the program on the throwaway node, a container for sessions, and servers."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kube.apiserver import ApiServer, make_node_certificates, serve
from tests.proxy.program import Program as Proxy
from tests.serving import Handler, serving

from .copying import containers, cp, proxy, start_container
from .forked import Program
from .house import House
from .kubelet import Pod
from .lab import Lab

__all__ = ["containers", "cp", "proxy", "start_container"]


@pytest.fixture
def command(shared_lab: Lab) -> list[str]:
    return [sys.executable, "-m", "pycrictl", "-t", "20s", "-r", shared_lab.node.endpoint]


@pytest.fixture(scope="session")
def crictl(shared_lab: Lab) -> Iterator[Program]:
    """Runs the program on the node without the cost of its start."""
    with Program("-t", "20s", "-r", shared_lab.node.endpoint) as program:
        yield program


@pytest.fixture(scope="session")
def furnished(shared_lab: Lab) -> Iterator[House]:
    with House() as house:
        yield house


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="pct-") as name:
        yield Path(name)


@pytest.fixture
def pod(lab: Lab) -> Pod:
    return lab.node.kubelet.run_pod("sessions")


@pytest.fixture
def container(lab: Lab, pod: Pod) -> str:
    return lab.container(pod)


@pytest.fixture
def api(run_folder: Path) -> Iterator[ApiServer]:
    """The stand-in of an API server, without pods."""
    with serve(make_node_certificates(run_folder)) as server:
        server.pods = {"kind": "PodList", "items": []}
        yield server


@pytest.fixture
def unknown_ca(tmp_path: Path) -> Iterator[str]:
    """The address of a registry whose certificate is of a CA that containerd does not know."""
    name = os.uname().nodename  # containerd uses plain HTTP for localhost and its addresses
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    files = ["-keyout", "registry.key", "-out", "registry.pem"]
    names = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
    subprocess.run(
        ["openssl", *words, *files, *names], cwd=tmp_path, check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "registry.pem", tmp_path / "registry.key")
    with serving(Handler, context, name) as port:
        yield f"{name}:{port}"


@pytest.fixture
def start(lab: Lab) -> Iterator[Callable[..., Proxy]]:
    started: list[Proxy] = []

    def run(*flags: str, **how: Any) -> Proxy:
        program = Proxy(lab.folder, lab.node.endpoint, *flags, **how)
        started.append(program)
        return program.__enter__()

    yield run
    for process in started:
        process.__exit__(None, None, None)
        process.log_path.unlink(missing_ok=True)
