"""Digests of tags, from registries of all kinds."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pycrictl.progress.tags import resolve

DIGEST = f"sha256:{'1' * 64}"
Answer = Callable[[BaseHTTPRequestHandler], tuple[int, dict[str, str], bytes]]


@contextmanager
def registry(answer: Answer) -> Iterator[str]:
    """A registry on the loopback; yields its host."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            status, headers, content = answer(self)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join(60)
        server.server_close()


def test_a_registry_that_asks_for_nothing() -> None:
    paths: list[tuple[str, str]] = []

    def answer(request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        paths.append((request.command, request.path))
        return 200, {"Docker-Content-Digest": DIGEST}, b""

    with registry(answer) as host:
        references = [f"{host}/shop/web:1", f"{host}/shop/web"]
        assert resolve(references, timeout_s=30) == dict.fromkeys(references, DIGEST)
    assert sorted(paths) == [
        ("HEAD", "/v2/shop/web/manifests/1"),
        ("HEAD", "/v2/shop/web/manifests/latest"),
    ]


def test_a_registry_that_wants_a_token_that_anybody_gets() -> None:
    def answer(request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        if request.path == "/token?service=r&scope=repository%3Ashop%2Fweb%3Apull":
            return 200, {}, json.dumps({"token": "s3cret"}).encode()
        if request.headers["Authorization"] == "Bearer s3cret":
            return 200, {"Docker-Content-Digest": DIGEST}, b""
        realm = f"http://{request.headers['Host']}/token"
        scope = "repository:shop/web:pull"
        challenge = f'Bearer realm="{realm}",service="r",scope="{scope}"'
        return 401, {"WWW-Authenticate": challenge}, b""

    with registry(answer) as host:
        assert resolve([f"{host}/shop/web:1"], timeout_s=30) == {f"{host}/shop/web:1": DIGEST}


@pytest.mark.parametrize(
    "answer",
    [
        (404, {}, b""),
        (401, {"WWW-Authenticate": "Basic realm=x"}, b""),
        (401, {"WWW-Authenticate": "Bearer nonsense"}, b""),
        (200, {}, b""),
        (200, {"Docker-Content-Digest": "1"}, b""),
    ],
)
def test_a_registry_that_does_not_say(answer: tuple[int, dict[str, str], bytes]) -> None:
    with registry(lambda _: answer) as host:
        assert resolve([f"{host}/shop/web:1"], timeout_s=30) == {}


def test_nobody_there() -> None:
    assert resolve(["127.0.0.1:1/shop/web:1", "::/odd"], timeout_s=30) == {}


def test_a_slow_registry() -> None:
    over = threading.Event()

    def answer(_: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        over.wait(60)
        return 200, {"Docker-Content-Digest": DIGEST}, b""

    with registry(answer) as host:
        began_at = time.monotonic()
        assert resolve([f"{host}/a:1", f"{host}/b:1"], timeout_s=0.3) == {}
        assert time.monotonic() - began_at < 10
        over.set()
