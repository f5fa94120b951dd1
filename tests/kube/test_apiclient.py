"""Calls to an API server, and the ways in which they fail."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pycrictl.base.errors import (
    ConnectError,
    DeadlineExceeded,
    Denied,
    NotFound,
    PycrictlError,
    RemoteProtocolError,
    RuntimeFault,
)
from pycrictl.kube.apiclient import MAX_EVENT_BYTES, ApiClient, Expired, events_of
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


@pytest.fixture
def other(credential: Credential, tmp_path: Path) -> Credential:
    """The credential of a node of another cluster."""
    (tmp_path / "other").mkdir()
    made = make_node_certificates(tmp_path / "other")
    paths = {"authority": made.ca, "certificate": made.cert("client"), "key": made.key("client")}
    read: dict[str, Any] = {key: Path(path).read_text() for key, path in paths.items()}
    return replace(credential, **read)


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


UNUSABLE = "^the kubelet's credential cannot be used: "
REFUSED = r"^cannot reach the API server at https://127.0.0.1:"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"authority": "other"}, "is not valid: "),
        ({"certificate": "other", "key": "other"}, REFUSED),
        ({"certificate": "no"}, UNUSABLE),
        ({"authority": "no"}, UNUSABLE),
        ({"key": "no"}, UNUSABLE),
        ({"server": "https://127.0.0.1:1"}, "connection refused"),
        ({"server": "https://"}, "is not a valid address"),
        ({"server": "https://[::1"}, "is not a valid address"),
        ({"server": "https://host:port"}, "is not a valid address"),
    ],
)
def test_no_connection(
    credential: Credential, other: Credential, changes: dict[str, str], error: str
) -> None:
    """Values marked "other" are valid, but belong to another cluster."""
    made: dict[str, Any] = {
        key: getattr(other, key) if text == "other" else text for key, text in changes.items()
    }
    with pytest.raises(ConnectError, match=error):
        ApiClient(lambda: replace(credential, **made)).get("/api/v1/pods", SELECTOR)


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


# Watches


async def _events(*chunks: bytes) -> list[dict[str, Any]]:
    async def body() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    return [event async for event in events_of(body())]


def test_events_come_in_pieces() -> None:
    line = b'{"type": "ADDED", "object": {"kind": "Pod"}}\n'
    pieces = [bytes([byte]) for byte in 2 * line + line[:9]]
    events = asyncio.run(_events(*pieces))
    assert [event["object"]["kind"] for event in events] == ["Pod", "Pod"]


@pytest.mark.parametrize(
    ("line", "error", "said"),
    [
        (b"{\n", RemoteProtocolError, "not an event"),
        (b"[]\n", RemoteProtocolError, "not an event"),
        (b'{"type": "ADDED"}\n', RemoteProtocolError, "not an event"),
        (b"\xff" * 100 + b"\n", RemoteProtocolError, "not an event"),
        (b"x" * (MAX_EVENT_BYTES + 1), RemoteProtocolError, "too long"),
        (b'{"type": "ERROR", "object": {"code": 410}}\n', Expired, "too old"),
        (b'{"type": "ERROR", "object": {"message": "a\\u001bb"}}\n', RuntimeFault, "a.x1bb"),
    ],
)
def test_what_ends_a_watch(line: bytes, error: type[PycrictlError], said: str) -> None:
    with pytest.raises(error, match=said):
        asyncio.run(_events(line))
