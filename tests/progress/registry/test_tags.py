"""Digests of tags, from registries of all kinds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler

from pycrictl.progress.registry.tags import resolve
from tests.serving import Handler, serving

Answer = Callable[[BaseHTTPRequestHandler], tuple[int, dict[str, str], bytes]]


def digest(content: bytes) -> str:
    return f"sha256:{sha256(content).hexdigest()}"


@contextmanager
def registry(answer: Answer) -> Iterator[str]:
    """A registry on the loopback; yields its host."""

    class Registry(Handler):
        def do_GET(self) -> None:
            status, headers, content = answer(self)
            self.send(status, content, **headers)

    with serving(Registry) as port:
        yield f"127.0.0.1:{port}"


def test_a_registry_that_answers() -> None:
    def answer(request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        return 200, {}, request.path.encode()

    with registry(answer) as host:
        assert resolve([f"{host}/shop/web:1", f"{host}/shop/web"], timeout_s=30) == {
            f"{host}/shop/web:1": digest(b"/v2/shop/web/manifests/1"),
            f"{host}/shop/web": digest(b"/v2/shop/web/manifests/latest"),
        }


def test_a_registry_that_does_not_say() -> None:
    with registry(lambda _: (404, {}, b"")) as host:
        assert resolve([f"{host}/shop/web:1"], timeout_s=30) == {}


def test_nobody_there() -> None:
    assert resolve(["127.0.0.1:1/shop/web:1", "::/odd"], timeout_s=30) == {}


def test_a_slow_registry() -> None:
    over = threading.Event()

    def answer(_: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        over.wait(60)
        return 200, {}, b""

    with registry(answer) as host:
        began_at = time.monotonic()
        assert resolve([f"{host}/a:1", f"{host}/b:1"], timeout_s=0.3) == {}
        assert time.monotonic() - began_at < 10
        over.set()
