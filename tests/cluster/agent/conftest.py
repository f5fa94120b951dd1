"""An agent behind a stand-in for the API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.agent.standing import Cluster, standing
from tests.kube.apiserver import make_node_certificates
from tests.kube.kubectl import Kubectl


@pytest.fixture
def cluster(run_folder: Path, tmp_path: Path) -> Iterator[Cluster]:
    with standing(make_node_certificates(run_folder), tmp_path) as made:
        yield made


@pytest.fixture
def kubectl(on_debian: None, cluster: Cluster) -> Kubectl:
    return cluster.kubectl()
