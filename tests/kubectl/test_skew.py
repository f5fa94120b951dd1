"""A plugin and agents of this version beside those of a next one, which knows more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.standing import Cluster as Standing
from tests.agent.standing import standing
from tests.kube.apiserver import make_node_certificates
from tests.kubectl.cluster import Cluster, Stream, event, pull
from tests.kubectl.plugin import Plugin

MORE = {"signature": {"verified": True}, "mirrors": ["a", "b"], "priority": 7}
"""What only the next version has."""


def following(document: dict[str, Any], **status: Any) -> dict[str, Any]:
    """An object as the next version would have it."""
    layers = [{**layer, **MORE} for layer in document["status"].get("layers", ())]
    changed = {**document["status"], **MORE, **({"layers": layers} if layers else {}), **status}
    spec = {**document["spec"], **MORE}
    return {**document, **MORE, "spec": spec, "status": changed}


def test_the_plugin_leaves_out_what_it_does_not_know(cluster: Cluster, plugin: Plugin) -> None:
    first = following(pull("web", progress=1, total=5))
    between = event("MODIFIED", following(pull("web", total=5), phase="Verifying"), "5")
    strange = {"type": "PROGRESS", "object": {"metadata": {"resourceVersion": "6"}, **MORE}}
    done = event("MODIFIED", following(pull("web", "Succeeded", progress=5, total=5)), "7")
    cluster.pulls = [[first]]
    cluster.watches = [Stream([between, strange, done], 0.3, "hold")]
    run = plugin.run("-A")
    assert run.code == 0
    assert "web:1 on n1 for default/web done: 1 layer" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.fixture
def agents(run_folder: Path, tmp_path: Path) -> Iterator[Standing]:
    with standing(make_node_certificates(run_folder), tmp_path) as made:
        made.start("n1")
        made.add_pod("web", node="n2")
        yield made


@pytest.mark.parametrize("phase", ["Pulling", "Verifying"])
def test_an_agent_of_the_next_version_beside_ours(agents: Standing, phase: str) -> None:
    newer = agents.start("n2")
    image = "registry.test/team/app:1"
    one = {
        "metadata": {"name": "web.main", "namespace": "default", "uid": "u"},
        "spec": {"podName": "web", "image": image, "nodeName": "n2"},
        "status": {"phase": "Pulling", "totalBytes": 5},
    }

    async def answer(scope: object) -> Any:
        return [following(one, phase=phase)]

    newer.routes._cluster.of_own_node = answer  # type: ignore[method-assign]  # of the next version
    found = agents.get("imagepulls")
    assert found.status == 200
    listed = found.document["items"]
    assert json.dumps(MORE)[1:-1] not in json.dumps(listed)
    warnings = found.headers.get_all("Warning") or ()
    if phase == "Pulling":
        assert [each["status"] for each in listed] == [{"phase": "Pulling", "totalBytes": 5}]
        assert not warnings
    else:
        assert any("node n2 answers what is not valid: status.phase" in each for each in warnings)
