"""Which clients get answers from an agent, and which are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pycrictl.cluster.agent.access import parse_trust
from tests.cluster.agent.standing import OWN, Cluster, bearer
from tests.kube.access import User
from tests.kube.tokens import Token

BASE = "/apis/progress.pycrictl.dev/v1alpha1"
PULLS = f"{BASE}/namespaces/default/imagepulls"


@pytest.mark.parametrize("names", ["", "{", '"front-proxy-client"', "[1]", "null", None])
def test_a_config_map_that_cannot_be_read_names_no_front_proxy(
    cluster: Cluster, names: str | None
) -> None:
    data = cluster.api.objects.documents("", "configmaps")[0]["data"]
    changes = {"requestheader-client-ca-file": "nonsense"}
    if names is not None:
        changes = {"requestheader-allowed-names": names}
    trust = parse_trust({"data": {**data, **changes}})
    assert trust is not None
    assert trust.proxy_ca == ""
    assert parse_trust({"data": None}) is None


def test_only_get(cluster: Cluster) -> None:
    cluster.start()
    how: Any = {"certificate": cluster.front_proxy, "user": "jane"}
    assert cluster.ask(PULLS, body=b"{}", **how).status == 413
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert cluster.ask(PULLS, method=method, body=b"{}", **how).status == 405
        assert cluster.ask(PULLS, method=method, body=b"{}").status == 401


def test_metrics(cluster: Cluster) -> None:
    cluster.start()
    assert cluster.ask("/livez").content == b"ok"
    assert cluster.ask("/readyz").status == 200
    assert cluster.ask("/metrics", headers=bearer("of jane")).status == 403
    page = cluster.ask("/metrics", headers=bearer("of admin")).content.decode()
    assert 'pycrictl_agent_requests_total{code="200",kind="health"} 2.0' in page
    assert "pycrictl_agent_source_running 0.0" in page


def test_the_credential_for_the_api_server_is_read_again(cluster: Cluster) -> None:
    """Tokens rotate: after the API server refuses one, the agent must reread the file at once."""
    cluster.start().feeds.fresh_s = 0.0
    cluster.add_pod("web")
    assert cluster.get(PULLS).status == 200
    del cluster.api.tokens["api-token"]
    cluster.api.tokens["next"] = Token(User(OWN))
    assert cluster.get(PULLS).status == 500
    kubeconfig = cluster.api.kubeconfig(token="next", client_certificate="", client_key="")
    (cluster.folder / "kubeconfig").write_text(json.dumps(kubeconfig))
    assert cluster.get(PULLS).status == 200
