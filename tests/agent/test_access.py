"""Who gets an answer, and who gets none."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from pathlib import Path
from typing import Any

import pytest

from pycrictl.agent.feed import FRESH_S
from pycrictl.agent.frontproxy import parse_trust
from tests.agent.standing import AUDIENCE, OWN, Cluster, token_of
from tests.kube.access import Grant, User
from tests.kube.tokens import Token
from tests.streaming.servers import make_certificates
from tests.waiting import wait_until

BASE = "/apis/progress.pycrictl.dev/v1alpha1"
PULLS = f"{BASE}/namespaces/default/imagepulls"
EVERYTHING = (
    *("/apis", "/apis/progress.pycrictl.dev", BASE, f"{BASE}/imagepulls", PULLS),
    *(f"{PULLS}/web.main", f"{PULLS}?watch=true", f"{BASE}/namespaces/default/pods/web"),
    f"{BASE}/namespaces/default/pods/web/imagepullprogress",
    *("/openapi/v2", "/openapi/v3", f"/openapi/v3{BASE}", "/", "/metrics", "/nosuch", "/version"),
    *("/node/v1alpha1/pulls", "/node/v1alpha1/pods/default/web/imagepullprogress"),
    *("/imagePullProgress/default/web", "/imagePullProgress/default/web/main", "/node", "/debug"),
)


@pytest.mark.parametrize("path", EVERYTHING)
def test_nothing_without_a_credential(cluster: Cluster, path: str) -> None:
    cluster.start()
    cluster.add_pod("web")
    found = cluster.ask(path, user="admin", headers={"Authorization": "Bearer made-up"})
    assert found.status == 401
    assert found.document["reason"] == "Unauthorized"
    assert b"web" not in found.content


@pytest.mark.parametrize("path", [one for one in EVERYTHING if one.startswith(("/apis", "/open"))])
def test_nothing_for_users_of_the_cluster_that_pose_as_the_front_proxy(
    cluster: Cluster, path: str
) -> None:
    """Their certificates are of the cluster's CA, and good for the kubelet's routes only."""
    cluster.start()
    assert cluster.ask(path, certificate=cluster.of_user("admin"), user="admin").status == 401


def test_the_front_proxy_without_a_user(cluster: Cluster) -> None:
    cluster.start()
    assert cluster.ask(PULLS, certificate=cluster.front_proxy).status == 401
    assert cluster.ask(PULLS, certificate=cluster.front_proxy, user="jane").status == 200


def test_other_authorities(cluster: Cluster, tmp_path: Path) -> None:
    """A certificate of the same name by another CA does not get through TLS."""
    cluster.start()
    (tmp_path / "other").mkdir()
    other = make_certificates(tmp_path / "other", client="/CN=front-proxy-client")
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
        cluster.ask(PULLS, certificate=(other.cert("client"), other.key("client")), user="jane")


def test_other_names_of_the_front_proxys_authority(cluster: Cluster) -> None:
    found = cluster.api.objects.documents("", "configmaps")[0]
    data = {**found["data"], "requestheader-allowed-names": '["somebody-else"]'}
    cluster.api.objects.add("", "configmaps", {**found, "data": data})
    cluster.start()
    assert cluster.ask(PULLS, certificate=cluster.front_proxy, user="jane").status == 401


def test_what_is_trusted_changes(cluster: Cluster) -> None:
    agent = cluster.start()
    found = cluster.api.objects.documents("", "configmaps")[0]
    good = dict(found["data"])

    def change(**data: str) -> None:
        before = agent.access.trust
        changed = {**good, **{key.replace("_", "-"): value for key, value in data.items()}}
        cluster.api.objects.add("", "configmaps", {"metadata": found["metadata"], "data": changed})
        wait_until(lambda: agent.access.trust != before)

    change(requestheader_allowed_names='["somebody-else"]')
    assert cluster.ask(PULLS, certificate=cluster.front_proxy, user="jane").status == 401
    change(requestheader_username_headers='["X-Other-User"]')
    assert cluster.ask(PULLS, certificate=cluster.front_proxy, user="jane").status == 401
    headers = {"X-Other-User": "jane"}
    assert cluster.ask(PULLS, certificate=cluster.front_proxy, headers=headers).status == 200
    change(requestheader_client_ca_file=good["client-ca-file"])

    def is_cut() -> bool:
        try:
            cluster.ask(PULLS, certificate=cluster.front_proxy, headers=headers)
        except (ssl.SSLError, ConnectionError, http.client.HTTPException):
            return True
        return False

    wait_until(is_cut)


@pytest.mark.parametrize("text", ["", "{", '"front-proxy-client"', "[1]", "null"])
def test_allowed_names_that_cannot_be_read_allow_nobody(cluster: Cluster, text: str) -> None:
    data = cluster.api.objects.documents("", "configmaps")[0]["data"]
    found = parse_trust({"data": {**data, "requestheader-allowed-names": text}})
    assert found is not None
    assert found.proxy_ca == ""


@pytest.mark.parametrize(
    "path",
    [
        "//apis",
        f"{PULLS}/../../../other/imagepulls",
        f"{BASE}/namespaces/default%2F..%2Fother/imagepulls",
        f"{PULLS}/web%00.main",
        f"{PULLS}/%2e%2e/x",
        f"{BASE}/namespaces//imagepulls",
        f"{PULLS};a=b",
        f"{PULLS}/{'a' * 2000}",
    ],
)
def test_paths_are_taken_literally(cluster: Cluster, path: str) -> None:
    cluster.start()
    cluster.add_pod("web")
    assert cluster.ask(path, certificate=cluster.front_proxy, user="jane").status == 401


def test_selectors_do_not_lead_out_of_a_namespace(cluster: Cluster) -> None:
    cluster.start()
    cluster.add_pod("web")
    cluster.add_pod("secret", namespace="other")
    for selector in (
        "metadata.namespace=other",
        "metadata.name=secret.main",
        "metadata.namespace=other,metadata.name=secret.main",
        "spec.nodeName=n1,metadata.namespace!=default",
        "spec.podName=secret",
    ):
        found = cluster.ask(
            f"{PULLS}?fieldSelector={selector}", certificate=cluster.front_proxy, user="jane"
        )
        assert found.document["items"] == []
    assert (
        cluster.ask(f"{PULLS}/secret.main", certificate=cluster.front_proxy, user="jane").status
        == 404
    )


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_only_get(cluster: Cluster, method: str) -> None:
    cluster.start()
    how: Any = {"certificate": cluster.front_proxy, "user": "jane"}
    assert cluster.ask(PULLS, method=method, body=b"{}", **how).status == 405
    assert cluster.ask(PULLS, body=b"{}", **how).status == 413
    assert cluster.ask(PULLS, method=method, body=b"{}").status == 401


def test_agents_need_a_good_token(cluster: Cluster) -> None:
    agent = cluster.start()
    path = "/node/v1alpha1/pulls"
    other = token_of("system:serviceaccount:pycrictl:other")
    late = f"{cluster.token}late"
    cluster.api.tokens |= {
        other: Token(User("system:serviceaccount:pycrictl:other"), (AUDIENCE,)),
        late: Token(User(OWN), (AUDIENCE,), time.time() - 1),
    }
    for token in ("made-up", "api-token", other, late):
        assert cluster.ask(path, headers={"Authorization": f"Bearer {token}"}).status == 401
    before = agent.access.reviews
    for _ in range(5):
        assert cluster.ask(path, headers={"Authorization": f"Bearer {cluster.token}"}).status == 200
    assert agent.access.reviews == before + 1, "the answer is kept"
    # An agent's token is no good for anything else.
    assert (
        cluster.ask(PULLS, user="jane", headers={"Authorization": f"Bearer {cluster.token}"}).status
        == 401
    )


def test_the_kubelets_routes(cluster: Cluster) -> None:
    cluster.start()
    path = "/imagePullProgress/default/web"
    nodes = [{"apiGroups": [""], "resources": ["nodes/proxy"], "verbs": ["get"]}]
    nodes[0]["resourceNames"] = ["n1"]
    cluster.api.tokens["s3cret"] = Token(User("bob"))
    cluster.api.tokens["other"] = Token(User("bob"), (AUDIENCE,))
    assert cluster.ask(path, headers={"Authorization": "Bearer made-up"}).status == 401
    refused = cluster.ask(path, headers={"Authorization": "Bearer s3cret"})
    assert refused.status == 403
    assert refused.document["message"] == (
        "Forbidden (user=bob, verb=get, resource=nodes, subresource=proxy, name=n1)"
    )
    assert cluster.ask(path, certificate=cluster.of_user("jane")).status == 403
    cluster.api.grants += [Grant("alice", nodes)]
    cluster.api.tokens["hers"] = Token(User("alice"))
    how: Any
    for how in (
        {"headers": {"Authorization": "Bearer hers"}},
        {"certificate": cluster.of_user("admin")},
    ):
        found = cluster.ask(path, **how)
        assert (found.status, found.document["message"]) == (404, 'pods "web" not found')
    assert cluster.ask(path, headers={"Authorization": "Bearer other"}).status == 401
    # The front proxy's certificate stands for nobody here, whatever its headers say.
    assert cluster.ask(path, certificate=cluster.front_proxy, user="admin").status == 401


def test_metrics(cluster: Cluster) -> None:
    cluster.start()
    assert cluster.ask("/livez").content == b"ok"
    assert cluster.ask("/readyz").status == 200
    assert cluster.ask("/metrics", certificate=cluster.of_user("jane")).status == 403
    page = cluster.ask("/metrics", certificate=cluster.of_user("admin")).content.decode()
    assert 'pycrictl_agent_requests_total{code="200",kind="health"} 2.0' in page
    assert "pycrictl_agent_source_running 0.0" in page


def test_names_are_escaped(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.start()
    evil = "registry.test/a\x1b[31m\r\nb:1"
    cluster.add_pod("web", image=evil, state={"waiting": {"reason": "X\x1b[0m\n"}})
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    found = cluster.ask(PULLS, certificate=cluster.front_proxy, user="jane", headers=accept)
    for cell in found.document["rows"][0]["cells"]:
        assert cell.isprintable()
    whole = cluster.ask(PULLS, certificate=cluster.front_proxy, user="jane").content
    assert b"\x1b" not in whole
    assert json.loads(whole)["items"][0]["spec"]["image"] == evil
    cluster.ask("/x%1b[31m", user="e\x7fvil")
    assert all(record.getMessage().isprintable() for record in caplog.records)


def test_the_credential_for_the_api_server_is_read_again(cluster: Cluster) -> None:
    """Its token rotates; one that has just been refused is read again at once."""
    cluster.start()
    cluster.add_pod("web")
    assert cluster.ask(PULLS, certificate=cluster.front_proxy, user="jane").status == 200
    del cluster.api.tokens["api-token"]
    cluster.api.tokens["next"] = Token(User(OWN))
    time.sleep(FRESH_S)
    assert cluster.ask(PULLS, certificate=cluster.front_proxy, user="jane").status == 500
    kubeconfig = cluster.api.kubeconfig(token="next", client_certificate="", client_key="")
    (cluster.folder / "kubeconfig").write_text(json.dumps(kubeconfig))
    assert cluster.ask(PULLS, certificate=cluster.front_proxy, user="jane").status == 200


def test_the_kubelets_routes_through_the_api_servers_node_proxy(cluster: Cluster) -> None:
    """It hands on no credential but what is in a header of one's own."""
    port = cluster.start().door.address[1]
    address = [{"type": "InternalIP", "address": "127.0.0.1"}]
    node = {"metadata": {"name": "n1"}, "status": {"addresses": address}}
    cluster.api.objects.add("", "nodes", node)
    cluster.api.tokens["boss"] = Token(User("boss", ("system:masters",)))
    path = f"/api/v1/nodes/https:n1:{port}/proxy/imagePullProgress/default/web"
    context = ssl.create_default_context(cafile=cluster.api.certificates.ca)
    found = []
    for headers in ({}, {"X-Pycrictl-Token": "boss"}):
        connection = http.client.HTTPSConnection("127.0.0.1", cluster.api.port, context=context)
        connection.request("GET", path, headers={"Authorization": "Bearer boss", **headers})
        found.append(connection.getresponse().status)
        connection.close()
    assert found == [401, 404]
