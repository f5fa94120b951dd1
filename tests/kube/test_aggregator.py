"""The stand-in of an API server hands on what a real one does (seen on 1.36.2)."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from typing import Any

import pytest

from tests.kube.access import Grant, User, parse
from tests.kube.apiserver import ApiServer
from tests.kube.backend import BASE, GROUP, Backend
from tests.kube.conftest import AsUser
from tests.kube.tokens import Token
from tests.waiting import wait_until

PODS = f"{BASE}/namespaces/default/pods"
PULLS = f"{BASE}/namespaces/default/imagepulls"
VIEW = [{"apiGroups": [GROUP], "resources": ["imagepulls", "pods/imagepullprogress"]}]
VIEW[0]["verbs"] = ["get", "list", "watch"]


def connect(api: ApiServer, name: str) -> http.client.HTTPSConnection:
    context = ssl.create_default_context(cafile=api.certificates.ca)
    context.load_cert_chain(api.certificates.cert(name), api.certificates.key(name))
    return http.client.HTTPSConnection("127.0.0.1", api.port, context=context, timeout=60)


def ask(
    api: ApiServer, target: str, name: str = "admin", headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    connection = connect(api, name)
    connection.request("GET", target, headers=headers or {})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, json.loads(content)


def test_a_user_arrives_and_nothing_that_he_says_of_himself(
    api: ApiServer, service: Backend
) -> None:
    forged = {"X-Remote-User": "boss", "X-Remote-Group": "system:masters", "X-Forwarded-For": "::1"}
    forged |= {"X-Remote-Extra-Scopes": "all", "Cookie": "a=b"}
    extra = {"authentication.kubernetes.io/credential-id": ["JTI=1"]}
    api.tokens["s3cret"] = Token(User("bob", ("dev",), "u-1", extra))
    api.grants.append(Grant("bob", VIEW))
    headers = {**forged, "Authorization": "Bearer s3cret"}
    _, seen = ask(api, PULLS, "jane", headers=headers)
    assert seen["subject"] == [["commonName", "front-proxy-client"]]
    arrived = sorted(pair for pair in seen["headers"] if pair[0] != "Accept-Encoding")
    assert arrived == [
        ["Cookie", "a=b"],
        ["Host", f"127.0.0.1:{service.port}"],
        ["X-Forwarded-For", "::1, 127.0.0.1"],
        ["X-Forwarded-Host", f"127.0.0.1:{service.port}"],
        ["X-Forwarded-Proto", "https"],
        ["X-Forwarded-Uri", PULLS],
        ["X-Remote-Extra-authentication.kubernetes.io%2fcredential-id", "JTI=1"],
        ["X-Remote-Group", "dev"],
        ["X-Remote-Group", "system:authenticated"],
        ["X-Remote-Uid", "u-1"],
        ["X-Remote-User", "bob"],
    ]


@pytest.mark.parametrize(
    ("target", "arrives"),
    [
        ("/imagepulls?z=1&a=2&a=1", "/imagepulls?a=2&a=1&z=1"),
        ("%2Fimagepulls/x", "/imagepulls/x"),
        ("//imagepulls", "//imagepulls"),
        ("/imagepulls/../../other/imagepulls", "/imagepulls/../../other/imagepulls"),
        ("/imagepulls/a%2Fb%00c%0d%0aX", "/imagepulls/a/b%00c%0D%0AX"),
    ],
)
def test_a_path_is_decoded_and_encoded_but_never_cleaned(
    api: ApiServer, service: Backend, target: str, arrives: str
) -> None:
    code, seen = ask(api, f"{BASE}/namespaces/default{target}")
    assert (code, seen["target"]) == (200, f"{BASE}/namespaces/default{arrives}")


def test_it_authorizes_before(api: ApiServer, service: Backend) -> None:
    code, answer = ask(api, f"{PODS}/app/imagepullprogress", "jane")
    assert (code, answer["message"]) == (
        403,
        f'pods.{GROUP} "app" is forbidden: User "jane" cannot get resource'
        f' "pods/imagepullprogress" in API group "{GROUP}" in the namespace "default"',
    )
    assert service.asked == []
    api.grants.append(Grant("group:dev", VIEW, "default"))
    assert ask(api, f"{PODS}/app/imagepullprogress", "jane")[0] == 200
    assert ask(api, f"{BASE}/imagepulls", "jane")[0] == 403
    assert ask(api, f"{BASE}/namespaces/shop/imagepulls", "jane")[0] == 403


@pytest.mark.parametrize(
    ("target", "verb", "is_long"),
    [
        (f"{PULLS}?watch=true", "watch", True),
        (f"{PULLS}?watch=0", "list", False),
        (f"{PODS}/app/imagepullprogress?watch=true", "get", False),
        (f"{BASE}/watch/namespaces/default/pods/app/imagepullprogress", "watch", True),
        (f"{PODS}/app/log", "get", True),
        ("/api/v1/nodes/n1:10281/proxy/metrics", "get", True),
    ],
)
def test_what_is_long_running(target: str, verb: str, is_long: bool) -> None:
    request = parse("GET", target)
    assert (request.verb, request.is_long_running) == (verb, is_long)


def lines_of(api: ApiServer, target: str) -> tuple[int, bool]:
    """How many lines come, and whether the answer ends as it should."""
    connection = connect(api, "admin")
    connection.request("GET", target)
    response = connection.getresponse()
    try:
        return response.read().count(b"\n"), True
    except http.client.IncompleteRead as exc:
        return exc.partial.count(b"\n"), False
    finally:
        connection.close()


def test_what_is_no_watch_is_cut(api: ApiServer, service: Backend) -> None:
    api.limit_s = 0.5
    count, is_whole = lines_of(api, f"{PODS}/app/imagepullprogress?n=20&every=0.1")
    assert 0 < count < 20
    assert not is_whole
    wait_until(lambda: service.gone)
    code, answer = ask(api, f"{PULLS}/app?after=2")
    assert code == 504
    assert answer["message"] == "Timeout: request did not complete within the allotted timeout"
    assert lines_of(api, f"{PULLS}?n=10&every=0.1&watch=1") == (10, True)


def test_lines_come_one_by_one(api: ApiServer, service: Backend) -> None:
    connection = connect(api, "admin")
    connection.request("GET", f"{PULLS}?n=5&every=0.2&watch=1")
    response = connection.getresponse()
    delays = [time.time() - json.loads(response.readline())["at"] for _ in range(5)]
    connection.close()
    assert min(delays) < 0.15  # on a busy machine some are late, but none waits for the next


def test_who_has_gone_and_what_breaks_off(api: ApiServer, service: Backend) -> None:
    assert lines_of(api, f"{PULLS}?n=3&die=1&watch=1") == (3, False)
    connection = connect(api, "admin")
    connection.request("GET", f"{PULLS}?n=1000&every=0.05&watch=1")
    connection.getresponse().readline()
    connection.close()
    wait_until(lambda: service.gone)


def test_an_upgraded_connection_has_no_limit(api: ApiServer, service: Backend) -> None:
    api.limit_s = 0.3
    connection = connect(api, "admin")
    connection.connect()
    head = f"GET {PODS}/app/imagepullprogress HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
    connection.sock.sendall(f"{head}Upgrade: websocket\r\n\r\n".encode())
    got = b""
    while not got.endswith(b"\r\n\r\n"):
        got += connection.sock.recv(1)
    assert got.startswith(b"HTTP/1.1 101 ")
    for text in (b"one", b"two"):
        time.sleep(0.4)
        connection.sock.sendall(text)
        assert connection.sock.recv(100) == text
    connection.close()


def test_nobody_behind_it(api: ApiServer, service: Backend, as_user: AsUser) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        api.services[0].port = taken.getsockname()[1]
        assert "(ServiceUnavailable)" in as_user("admin").bad("get", "--raw", PULLS)


def test_kubectl_finds_what_stands_behind_it(
    api: ApiServer, service: Backend, as_user: AsUser
) -> None:
    kubectl = as_user("admin")
    lines = kubectl.good("api-resources").splitlines()
    (line,) = [one.split() for one in lines if GROUP in one]
    assert line == ["imagepulls", "ipull", f"{GROUP}/v1alpha1", "true", "ImagePull"]
    assert "default/web" not in kubectl.good("get", "pods", "-o", "name")
    assert kubectl.good("get", "pods", "-A", "-o", "name").splitlines() == ["pod/web", "pod/batch"]


def test_a_port_of_a_node_is_not_told_who_asks(api: ApiServer, service: Backend) -> None:
    address = [{"type": "InternalIP", "address": "127.0.0.1"}]
    api.objects.add("", "nodes", {"metadata": {"name": "n1"}, "status": {"addresses": address}})
    connection = connect(api, "admin")
    connection.request("GET", f"/api/v1/nodes/n1:{service.port}/proxy/metrics?a=1")
    answer = connection.getresponse()
    assert answer.status == 503  # plain HTTP to a port that speaks TLS
    connection.close()
