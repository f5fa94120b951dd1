"""The stand-in of an API server for the tests of this room, and kubectl."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kube import backend
from tests.kube.aggregator import ApiService
from tests.kube.apiserver import ApiServer, make_node_certificates, serve
from tests.kube.backend import Backend
from tests.kube.kubectl import Kubectl

AsUser = Callable[[str], Kubectl]


@pytest.fixture
def api(run_folder: Path) -> Iterator[ApiServer]:
    with serve(make_node_certificates(run_folder)) as server:
        yield server


@pytest.fixture
def service(api: ApiServer) -> Iterator[Backend]:
    """What stands behind the API server: it says what has reached it."""
    with backend.serve(api.certificates, api.front_proxy.ca) as server:
        api.services.append(ApiService(backend.GROUP, backend.VERSION, "127.0.0.1", server.port))
        yield server


@pytest.fixture
def as_user(api: ApiServer, tmp_path: Path) -> AsUser:
    """Make a kubectl of one of the API server's users."""

    def make(name: str) -> Kubectl:
        file = tmp_path / f"{name}.kubeconfig"
        file.write_text(json.dumps(api.kubeconfig(name=name)))
        return Kubectl(file, tmp_path)

    return make
