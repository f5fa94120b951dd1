"""Attacks on an agent: no client gets more than its own credential allows."""

from __future__ import annotations

import base64
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pycrictl.base.units import escape
from pycrictl.cluster.agent.node_agent import Agent
from tests.cluster.agent.attackers import FORGED, Hands, ask, names, reach, watch
from tests.cluster.agent.standing import AUDIENCE, OWN, Cluster, bearer, token_of
from tests.kube.access import Grant, User
from tests.kube.tokens import API_AUDIENCE, Token
from tests.waiting import wait_until

BASE = f"/apis/{AUDIENCE}/v1alpha1"
PULLS = f"{BASE}/imagepulls"
OF_PROXY = (
    "/apis", f"/apis/{AUDIENCE}", BASE, PULLS, f"{PULLS}?watch=true",
    "/openapi/v3", f"/openapi/v3{BASE}", f"{BASE}/namespaces/default/imagepulls",
    *(f"{BASE}/namespaces/default/{path}" for path in ("imagepulls/web.main", "pods/web")),
)  # fmt: skip
OF_PEERS = (
    "/node/v1alpha1/pulls",
    "/node/v1alpha1/namespaces/default/pods/web/containercopies/x",
)
OF_NOBODY = ("/", "/metrics", "/nosuch", "/version", "/node", "/debug")


@pytest.fixture
def agent(cluster: Cluster) -> Agent:
    cluster.add_pod("web")
    cluster.add_pod("db", namespace="secret")
    cluster.add_pod("web", namespace="secret")
    return cluster.start()


@pytest.fixture
def address(agent: Agent) -> tuple[str, int]:
    return agent.listener.address


@pytest.fixture
def hands(cluster: Cluster, tmp_path: Path) -> Hands:
    folder = tmp_path / "hands"
    folder.mkdir()
    return Hands(cluster.api, folder)


# Without the front proxy's certificate


def test_nothing_without_a_credential(cluster: Cluster, address: tuple[str, int]) -> None:
    for path in (*OF_PROXY, *OF_PEERS, *OF_NOBODY):
        code, content = ask(address, path, headers={**FORGED, **bearer("made-up")})
        assert (code, json.loads(content)["reason"]) == (401, "Unauthorized"), path
        assert b"web" not in content


def test_no_other_certificate_opens_anything(
    cluster: Cluster, address: tuple[str, int], hands: Hands
) -> None:
    cluster.api.asked.clear()
    for pair in hands.all.values():
        for path in OF_PROXY:
            code, content = ask(address, path, pair, FORGED)
            assert code in (0, 401)
            assert b"web" not in content
    assert [path for _, path, _ in cluster.api.asked if "/pods" in path] == []
    assert names(ask(address, PULLS, hands.front_proxy, FORGED)[1]) == [
        "default/web.main",
        "secret/db.main",
        "secret/web.main",
    ]


def test_the_front_proxy_has_to_say_for_whom(address: tuple[str, int], hands: Hands) -> None:
    for headers in ({}, {"X-Remote-User": ""}, {"X-Remote-Group": "system:masters"}):
        assert ask(address, PULLS, hands.front_proxy, headers)[0] == 401


def test_the_front_proxy_is_no_agent_and_has_no_rights_of_its_own(
    address: tuple[str, int], hands: Hands
) -> None:
    for path in OF_PEERS:
        assert ask(address, path, hands.front_proxy, FORGED)[0] == 401
    assert ask(address, "/metrics", hands.front_proxy, FORGED)[0] in (401, 403)


def test_a_front_proxy_that_is_believed_no_more(
    cluster: Cluster, agent: Agent, address: tuple[str, int], hands: Hands
) -> None:
    (config_map,) = cluster.api.objects.documents("", "configmaps")
    good = dict(config_map["data"])

    def refuses(headers: dict[str, str], **data: str) -> bool:
        before = agent.access.trust
        changed = {**good, **{key.replace("_", "-"): value for key, value in data.items()}}
        cluster.api.objects.add("", "configmaps", {**config_map, "data": changed})
        wait_until(lambda: agent.access.trust != before)
        return ask(address, PULLS, hands.front_proxy, headers)[0] in (0, 401)

    assert ask(address, PULLS, hands.front_proxy, FORGED)[0] == 200
    assert refuses(FORGED, requestheader_allowed_names='["other"]')
    assert refuses(FORGED, requestheader_allowed_names='"front-proxy-client"')  # nobody is allowed
    assert refuses(FORGED, requestheader_username_headers='["X-Other-User"]')
    assert ask(address, PULLS, hands.front_proxy, {"X-Other-User": "jane"})[0] == 200
    assert refuses(FORGED, requestheader_client_ca_file=good["client-ca-file"])
    assert not refuses(FORGED)


# Tokens


def test_only_the_agents_own_token_for_agents(
    cluster: Cluster, agent: Agent, address: tuple[str, int]
) -> None:
    path, other = OF_PEERS
    tokens = cluster.api.tokens
    own, jane = User(OWN), User("jane", ("system:masters",))
    refused = {
        "another audience": Token(own),
        "two other audiences": Token(own, (API_AUDIENCE, f"{AUDIENCE}.example")),
        "expired": Token(own, (AUDIENCE,), good_until=time.time() - 1),
        "somebody else's": Token(jane, (AUDIENCE,)),
        "another namespace's": Token(User(OWN.replace(":pycrictl:", ":default:")), (AUDIENCE,)),
    }
    for number, (what, token) in enumerate(refused.items(), 1):
        text = token_of(OWN, number)
        tokens[text] = token
        for _ in range(2):  # the second answer comes from the cache
            assert ask(address, path, headers=bearer(text))[0] == 401, what
    for text in ("", "x", "a b", "\xff", "e30.e30.", "x" * 15_000, token_of(OWN, 99)):
        assert ask(address, path, headers=bearer(text))[0] in (400, 401)
    basic = {"Authorization": f"Basic {base64.b64encode(b'a:b').decode()}"}
    assert ask(address, path, headers=basic)[0] == 401
    before = cluster.reviews
    for _ in range(5):
        assert ask(address, path, headers=bearer(cluster.token))[0] == 200
    assert cluster.reviews == before + 1, "the answer is kept"
    assert ask(address, other, headers=bearer(token_of(OWN, 1)))[0] == 401
    assert ask(address, other, headers=bearer(cluster.token))[0] not in (401, 403)


def test_the_token_for_agents_opens_nothing_else(
    cluster: Cluster, address: tuple[str, int]
) -> None:
    cluster.api.grants.append(
        Grant(OWN, [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}])
    )
    for path in (*OF_PROXY, "/metrics"):
        assert ask(address, path, headers={**FORGED, **bearer(cluster.token)})[0] == 401


def test_metrics_are_for_who_may_get_them(
    cluster: Cluster, address: tuple[str, int], hands: Hands
) -> None:
    rule = {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}
    cluster.api.grants.append(Grant("bob", [rule]))
    cluster.api.tokens["bob"] = Token(User("bob"))
    cluster.api.tokens["for agents"] = Token(User("bob"), (AUDIENCE,))
    for headers in ({}, bearer("made-up"), bearer("for agents")):
        assert ask(address, "/metrics", headers=headers)[0] == 401
    assert ask(address, "/metrics", hands.all["another CA"])[0] in (0, 401)
    for kind in ("user", "admin"):  # certificates of users count for nothing
        assert ask(address, "/metrics", hands.all[kind], FORGED)[0] in (0, 401)
    code, content = ask(address, "/metrics", headers=bearer("of jane"))
    assert (code, json.loads(content)["message"]) == (
        403,
        "Forbidden (user=jane, verb=get, path=/metrics)",
    )
    assert ask(address, "/metrics", headers=bearer("bob"))[0] == 200


# Namespaces


@pytest.fixture
def jane(cluster: Cluster) -> None:
    """Grant jane all of the API in the namespace default, and nothing elsewhere."""
    rules = [{"apiGroups": [AUDIENCE], "resources": ["*"], "verbs": ["*"]}]
    cluster.api.grants.append(Grant("jane", rules, "default"))


def through(cluster: Cluster, path: str) -> tuple[int, bytes]:
    own = cluster.api.certificates
    return ask(("127.0.0.1", cluster.api.port), path, (own.cert("jane"), own.key("jane")))


def test_no_path_leads_to_another_namespace(cluster: Cluster, agent: Agent, jane: None) -> None:
    for path in (
        "imagepulls/../../secret/imagepulls",
        "imagepulls/../../secret/imagepulls/db.main",
        "imagepulls/web.main/../../../secret/imagepulls/db.main",
        "imagepulls/%2e%2e/%2e%2e/secret/imagepulls",
        "imagepulls/..%2f..%2fsecret%2fimagepulls",
        "imagepulls%2f..%2f..%2fsecret%2fimagepulls",
        "imagepulls/.%00./secret",
        "imagepulls/db.main",
        "imagepulls//db.main",
        "imagepulls/./db.main",
        "imagepulls;/../secret",
        "imagepulls/web.main%0d%0aX-Remote-User:%20admin",
        "imagepulls/%ff%fe",
        "imagepulls/secret%2Fdb.main",
        "pods/../../secret/pods/db/containercopies",
        "pods/web/containercopies/../../../../secret/imagepulls",
        "pods/secret%2Fdb/containercopies",
        f"imagepulls/{'a' * 5000}",
        f"imagepulls/{'a/' * 500}",
        f"imagepulls/{'%2e%2e%2f' * 300}secret/imagepulls",
    ):
        code, content = through(cluster, f"{BASE}/namespaces/default/{path}")
        assert 400 <= code < 500, path
        assert b"registry.test" not in content, path
        assert json.loads(content)["kind"] == "Status"


def test_no_selector_leads_to_another_namespace(cluster: Cluster, agent: Agent, jane: None) -> None:
    path = f"{BASE}/namespaces/default/imagepulls?fieldSelector="
    selectors = (
        "metadata.namespace=secret",
        "metadata.namespace=secret,metadata.name=db.main",
        "metadata.namespace!=default",
        "metadata.name=db.main",
        "metadata.name=secret/db.main",
        "metadata.name=../secret/db.main",
        "spec.podName=db",
        "metadata.name=web.main,metadata.name=db.main",
        "spec.podName=web,metadata.namespace=secret",
        "spec.nodeName=n1,metadata.namespace!=default",
    )
    for selector in selectors:
        code, content = through(cluster, f"{path}{selector}")
        assert (code, names(content)) == (200, []), selector
    for selector in ("", "metadata.name=web.main"):  # secret has one of that name, too
        assert names(through(cluster, f"{path}{selector}")[1]) == ["default/web.main"]
    watches = [f"{path}{selector}&watch=true&timeoutSeconds=1" for selector in selectors]
    with ThreadPoolExecutor() as pool:
        for path, (code, lines) in zip(
            watches, pool.map(partial(through, cluster), watches), strict=True
        ):
            assert (code, b"registry.test" in lines) == (200, False), path


def test_a_name_that_was_authorized_is_the_name_that_is_answered(
    cluster: Cluster, agent: Agent
) -> None:
    rule = {"apiGroups": [AUDIENCE], "resources": ["imagepulls"], "verbs": ["list"]}
    cluster.api.grants.append(Grant("jane", [{**rule, "resourceNames": ["web.main"]}], "default"))
    cluster.add_pod("other")
    path = f"{BASE}/namespaces/default/imagepulls?fieldSelector=metadata.name"
    assert through(cluster, f"{path}=other.main")[0] == 403
    assert names(through(cluster, f"{path}=web.main")[1]) == ["default/web.main"]
    for more in (",metadata.name=other.main", "&fieldSelector=metadata.name=other.main"):
        assert "default/other.main" not in names(through(cluster, f"{path}=web.main{more}")[1])
    assert through(cluster, f"{path}!=other.main")[0] == 403


# Floods


def test_who_holds_connections_open_does_not_keep_the_api_server_out(
    cluster: Cluster, agent: Agent, address: tuple[str, int], hands: Hands
) -> None:
    """One client requests what needs no credential, and keeps every connection it gets."""
    agent.listener.max_connections, agent.listener.max_unauthenticated = 100, 40
    watcher, status = watch(address, PULLS, hands.front_proxy, "modest")
    assert status == 200
    with ExitStack() as stack:
        stack.enter_context(watcher)
        for _ in range(60):
            try:
                held = stack.enter_context(reach(address))
                held.sendall(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
                held.recv(4096)
            except OSError:
                pass  # turned away
        assert ask(address, PULLS, hands.front_proxy, FORGED)[0] == 200
        cluster.add_pod("late")
        while b"late" not in watcher.recv(65536):  # accepted connections stay open
            pass


def test_requests_that_are_none(agent: Agent, address: tuple[str, int]) -> None:
    agent.listener.handshake_s, agent.listener.first_request_s = 1.5, 0.5
    for request in (
        b"GET / HTTP/1.1\r\nA: " + b"a" * 200_000,
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
        b"POST /apis HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n" + b"a" * 100_000,
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + b"5\r\naaaaa\r\n" * 9,
        b"\x16\x03\x01" * 100,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ):
        with reach(address) as attacker:
            answer = b"-"
            try:
                attacker.sendall(request)
                while got := attacker.recv(65536):
                    answer += got
                    assert len(answer) < 100_000
            except OSError:
                pass
        assert re.match(rb"-($|HTTP/1\.[01] (4\d\d|501|505) )", answer), answer[:200]
        assert ask(address, "/livez")[0] == 200


def test_watchers_of_one_user_do_not_take_the_place_of_others(
    agent: Agent, address: tuple[str, int], hands: Hands
) -> None:
    agent.routes.max_watches_per_user = 20
    codes = []
    with ExitStack() as stack:
        for _ in range(25):
            watcher, status = watch(address, PULLS, hands.front_proxy, "greedy")
            stack.enter_context(watcher)
            codes.append(status)
        assert set(codes) == {200, 429}
        assert codes.count(200) == 20
        path = f"{PULLS}?watch=true&timeoutSeconds=1"
        assert ask(address, path, hands.front_proxy, {"X-Remote-User": "modest"})[0] == 200
    wait_until(lambda: ask(address, path, hands.front_proxy, {"X-Remote-User": "greedy"})[0] == 200)


# Text from untrusted sources


def texts_of(value: Any) -> list[str]:
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return [text for item in value for text in texts_of(item)]
    return [value] if isinstance(value, str) else []


EVIL = "\x1b]0;gone\x07\x1b[2J\r\nfake: line\u202e"


def test_names_and_errors_are_escaped_where_they_are_shown(
    cluster: Cluster,
    agent: Agent,
    address: tuple[str, int],
    hands: Hands,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    waiting = {"waiting": {"reason": f"ErrImagePull{EVIL}", "message": f"no {EVIL}"}}
    cluster.add_pod("evil", image=f"registry.test/{EVIL}:1", state=waiting)
    cluster.add_pod("far", node=f"n2{EVIL}", image=f"registry.test/{EVIL}:1")
    headers = {**FORGED, "Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    code, content = ask(address, f"{PULLS}?includeObject=None", hands.front_proxy, headers)
    assert code == 200
    cells = [str(cell) for row in json.loads(content)["rows"] for cell in row["cells"]]
    assert any("registry" in cell or "fake" in cell for cell in cells), cells
    for text in (*cells, *capfd.readouterr()):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", text), repr(text)
    # kubectl describe, jsonpath and custom columns print text of objects unescaped.
    _, whole = ask(address, PULLS, hands.front_proxy, FORGED)
    texts = [text for item in json.loads(whole)["items"] for text in texts_of(item)]
    assert "registry.test/" + escape(EVIL) + ":1" in texts
    assert f"node n2{escape(EVIL)} did not answer" in " ".join(texts)
    assert [text for text in texts if not text.isprintable()] == []
    ask(address, "/x%1b[31m", headers={"X-Remote-User": "e\x7fvil"})
    assert all(record.getMessage().isprintable() for record in caplog.records)
