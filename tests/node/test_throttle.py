from __future__ import annotations

import base64
import http.client
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.serving import Handler, serving
from tests.waiting import wait_until

from .throttle import Throttle

BODY = bytes(range(256)) * 4096  # 1 MiB


class _Upstream(Handler):
    def do_GET(self) -> None:
        start = int(self.headers.get("Range", "bytes=0-")[6:-1])
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(BODY) - start))
        self.send_header("X-Host", self.headers["Host"])
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(BODY[start:])

    do_HEAD = do_GET


@pytest.fixture
def throttle() -> Iterator[Throttle]:
    with serving(_Upstream) as port:
        throttle = Throttle(port)
        throttle.start()
        yield throttle
        throttle.stop()


def get(
    throttle: Throttle, path: str, method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection(throttle.host, timeout=60)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


class Download:
    """A GET in the background."""

    def __init__(self, throttle: Throttle, path: str) -> None:
        self.body = b""
        self._thread = threading.Thread(target=self._run, args=(throttle, path))
        self._thread.start()

    def _run(self, throttle: Throttle, path: str) -> None:
        self.body = get(throttle, path)[1]

    def wait(self) -> bytes:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.body


def test_passes_everything_on(throttle: Throttle) -> None:
    response, body = get(throttle, "/v2/app/blobs/x")
    assert (response.status, body) == (200, BODY)
    assert response.headers["X-Host"] == throttle.host
    assert throttle.sent_bytes == len(BODY)
    assert throttle.requests == [("GET", "/v2/app/blobs/x", 200)]


def test_range_and_head(throttle: Throttle) -> None:
    response, body = get(throttle, "/x", Range="bytes=1000-")
    assert (response.status, body) == (206, BODY[1000:])
    response, body = get(throttle, "/x", method="HEAD")
    assert (response.headers["Content-Length"], body) == (str(len(BODY)), b"")


def test_limit_holds_for_all_connections_together(throttle: Throttle) -> None:
    throttle.limit(2 * len(BODY))
    started = time.monotonic()
    downloads = [Download(throttle, f"/{number}") for number in range(2)]
    assert [download.wait() for download in downloads] == [BODY, BODY]
    assert 0.85 <= time.monotonic() - started <= 30


def test_limit_changes_live(throttle: Throttle) -> None:
    throttle.limit(100_000)
    download = Download(throttle, "/x")
    wait_until(lambda: throttle.sent_bytes >= 10_000)
    throttle.limit(0)
    time.sleep(0.1)  # a chunk may have been on its way
    held_at = throttle.sent_bytes
    time.sleep(0.2)
    assert throttle.sent_bytes == held_at < len(BODY)
    throttle.limit(None)
    assert download.wait() == BODY


def test_cut_within_the_body(throttle: Throttle) -> None:
    throttle.cut("/blobs/", after_bytes=100_000)
    with pytest.raises(http.client.IncompleteRead) as caught:
        get(throttle, "/blobs/x")
    assert caught.value.partial == BODY[:100_000]
    assert get(throttle, "/manifests/x")[1] == BODY


def test_cut_before_the_head(throttle: Throttle) -> None:
    throttle.cut("x")
    with pytest.raises(http.client.RemoteDisconnected):
        get(throttle, "/x")
    assert throttle.requests == [("GET", "/x", 0)]


@pytest.mark.parametrize("after_bytes", [0, 50_000])
def test_stall_goes_on_after_heal(throttle: Throttle, after_bytes: int) -> None:
    throttle.stall("x", after_bytes=after_bytes)
    download = Download(throttle, "/x")
    wait_until(lambda: throttle.sent_bytes >= after_bytes)
    time.sleep(0.1)
    assert throttle.sent_bytes == after_bytes
    throttle.heal()
    assert download.wait() == BODY


def test_stop_ends_a_stalled_connection() -> None:
    throttle = Throttle(upstream_port=1)
    throttle.start()
    throttle.stall("x")
    connection = http.client.HTTPConnection(throttle.host, timeout=60)
    connection.request("GET", "/x")
    throttle.stop()
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        connection.getresponse()
    connection.close()


@pytest.mark.parametrize("status", [401, 404, 429, 500])
def test_answers_with_a_status(throttle: Throttle, status: int) -> None:
    throttle.answer(r"/blobs/sha256:[ab]", status)
    response, _ = get(throttle, "/blobs/sha256:b")
    assert response.status == status
    assert ("WWW-Authenticate" in response.headers) == (status == 401)
    assert get(throttle, "/blobs/sha256:c")[0].status == 200
    throttle.heal()
    assert get(throttle, "/blobs/sha256:b")[0].status == 200


def test_login(throttle: Throttle) -> None:
    throttle.require_login("me", "secret")
    assert get(throttle, "/x")[0].status == 401
    token = base64.b64encode(b"me:secret").decode()
    assert get(throttle, "/x", Authorization=f"Basic {token}")[1] == BODY


def test_who_begins_with_tls_is_told_at_once_that_there_is_none(throttle: Throttle) -> None:
    """As by Go's servers: containerd 2 goes on without TLS then, on the loopback."""
    host, _, port = throttle.host.partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")  # no line ends in it
        assert client.recv(100).startswith(b"HTTP/1.0 400 ")
