"""The stand-in for an API server, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube.apiserver import ApiServer, make_node_certificates, serve


@pytest.fixture
def api(run_folder: Path) -> Iterator[ApiServer]:
    with serve(make_node_certificates(run_folder)) as server:
        yield server
