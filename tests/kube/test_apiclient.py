"""Calls to an API server, and everything that may be wrong with it."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pycrictl.errors import (
    ConnectError,
    DeadlineExceeded,
    Denied,
    NotFound,
    PycrictlError,
    RemoteProtocolError,
)
from pycrictl.kube.apiclient import ApiClient
from pycrictl.kube.credential import Credential, find_credential
from tests.kube.access import User
from tests.kube.apiserver import NODE, ApiServer, make_node_certificates, write_kubeconfig
from tests.kube.tokens import Token

SELECTOR = {"fieldSelector": f"spec.nodeName={NODE}"}
EVENT = {"kind": "Event", "reason": "PullProgress", "message": "84 %"}


@pytest.fixture
def credential(api: ApiServer, tmp_path: Path) -> Credential:
    write_kubeconfig(api.kubeconfig(inline=True), tmp_path)
    return find_credential(tmp_path)


def test_a_list_an_event_and_its_change(api: ApiServer, credential: Credential) -> None:
    client = ApiClient(lambda: credential)
    assert client.get("/api/v1/pods", SELECTOR) == api.pods
    events = "/api/v1/namespaces/default/events"
    assert client.post(events, EVENT) == EVENT
    assert client.patch(f"{events}/one", {"count": 2}) == {"count": 2}
    assert [(method, body) for method, _, body in api.asked] == [
        ("GET", None),
        ("POST", EVENT),
        ("PATCH", {"count": 2}),
    ]


def test_a_token_instead_of_a_certificate(api: ApiServer, credential: Credential) -> None:
    api.tokens["s3cret"] = Token(User(f"system:node:{NODE}", ("system:nodes",)))
    by_token = replace(credential, certificate="", key="", token="s3cret")
    assert ApiClient(lambda: by_token).get("/api/v1/pods", SELECTOR) == api.pods
    with pytest.raises(Denied, match=r"^the API server answered 401: Unauthorized$"):
        ApiClient(lambda: replace(by_token, token="wrong")).get("/api/v1/pods", SELECTOR)


def test_the_servers_own_words(credential: Credential) -> None:
    client = ApiClient(lambda: credential)
    with pytest.raises(Denied, match=r"can only list/watch pods with spec.nodeName field selector"):
        client.get("/api/v1/pods")
    with pytest.raises(NotFound, match="could not find the requested resource"):
        client.get("/apis/none")


def test_another_name_of_the_server(credential: Credential) -> None:
    right = ApiClient(lambda: replace(credential, server_name="node.test"))
    assert right.get("/api/v1/pods", SELECTOR)
    wrong = ApiClient(lambda: replace(credential, server_name="other.test"))
    with pytest.raises(ConnectError, match=r"certificate of .* is not good: Hostname mismatch"):
        wrong.get("/api/v1/pods", SELECTOR)


def test_a_server_that_nobody_vouches_for(credential: Credential, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Path(make_node_certificates(tmp_path / "other").ca).read_text()
    with pytest.raises(ConnectError, match="is not good: "):
        ApiClient(lambda: replace(credential, authority=other)).get("/api/v1/pods", SELECTOR)
    unverified = replace(credential, authority=other, is_unverified=True)
    assert ApiClient(lambda: unverified).get("/api/v1/pods", SELECTOR)


def test_a_certificate_of_another_authority(credential: Credential, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = make_node_certificates(tmp_path / "other")
    wrong = replace(
        credential,
        certificate=Path(other.cert("client")).read_text(),
        key=Path(other.key("client")).read_text(),
    )
    with pytest.raises(ConnectError, match=r"cannot reach the API server at https://127.0.0.1:"):
        ApiClient(lambda: wrong).get("/api/v1/pods", SELECTOR)


@pytest.mark.parametrize("changes", [{"certificate": "no"}, {"authority": "no"}, {"key": "no"}])
def test_a_credential_that_is_none(credential: Credential, changes: dict[str, str]) -> None:
    with pytest.raises(ConnectError, match=r"^the kubelet's credential cannot be used: "):
        ApiClient(lambda: replace(credential, **changes)).get("/api/v1/pods")  # type: ignore[arg-type]  # of texts only


def test_nobody_there(credential: Credential) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    gone = ApiClient(lambda: replace(credential, server=f"https://127.0.0.1:{port}"))
    with pytest.raises(ConnectError, match="connection refused"):
        gone.get("/api/v1/pods")


@pytest.mark.parametrize("server", ["https://", "https://[::1", "https://host:port"])
def test_an_address_that_is_none(credential: Credential, server: str) -> None:
    with pytest.raises(ConnectError, match="is not a valid address"):
        ApiClient(lambda: replace(credential, server=server)).get("/api/v1/pods")


@pytest.mark.parametrize("how", ["no answer", "no end", "no TLS"])
def test_a_call_has_a_limit(api: ApiServer, credential: Credential, how: str) -> None:
    if how == "no answer":
        api.silence = threading.Event()
    api.drips = how == "no end"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        if how == "no TLS":
            server = f"https://127.0.0.1:{silent.getsockname()[1]}"
            credential = replace(credential, server=server)
        began_at = time.monotonic()
        with pytest.raises(PycrictlError if how == "no TLS" else DeadlineExceeded):
            ApiClient(lambda: credential, timeout_s=0.3).get("/api/v1/pods", SELECTOR)
        assert time.monotonic() - began_at < 20, "far less than what keeps it waiting"


def test_what_is_not_json(api: ApiServer, credential: Credential) -> None:
    api.raw = b"<html>"
    with pytest.raises(RemoteProtocolError, match="is not valid"):
        ApiClient(lambda: credential).get("/api/v1/pods", SELECTOR)
