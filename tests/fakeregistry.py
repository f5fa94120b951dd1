"""A registry on the loopback that serves the documents of a test."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.serving import Handler, serving

LAYER, CONFIG = (f"sha256:{letter * 64}" for letter in "ab")
MANIFEST: dict[str, Any] = {
    "config": {"digest": CONFIG, "size": 2},
    "layers": [{"digest": LAYER, "size": 1000, "mediaType": "application/x-tar"}],
}


class FakeRegistry:
    """A registry with the image ``b:1``, and the requests that it received.

    Attributes:
        documents: by path.
        moved: URLs that paths redirect to.
        challenge, wanted: the challenge for requests without this ``Authorization``.
        is_dated: responses have a ``Date``.
        requests: method, path, authorization, body.
    """

    def __init__(self) -> None:
        self.documents: dict[str, bytes] = {"/v2/b/manifests/1": json.dumps(MANIFEST).encode()}
        self.moved: dict[str, str] = {}
        self.challenge = ""
        self.wanted = ""
        self.is_broken = False
        self.is_dated = True
        self.delay_s = 0.0
        self.requests: list[tuple[str, str, str, str]] = []
        self.host = ""

    def answer(self, handler: Handler) -> None:
        authorization = handler.headers["Authorization"] or ""
        body = handler.rfile.read(int(handler.headers["Content-Length"] or 0)).decode()
        self.requests.append((handler.command, handler.path, authorization, body))
        time.sleep(self.delay_s)
        path = handler.path.partition("?")[0]
        status, content = 200, self.documents.get(path)
        if path in self.moved:
            handler.send(307, b"", Location=self.moved[path])
            return
        if content is None:
            status, content = 404, b"{}"
        elif path.startswith("/v2/") and self.wanted not in ("", authorization):
            status, content = 401, b"{}"
        if self.is_broken:
            status, content = 500, b""
        headers = {"WWW_Authenticate": self.challenge} if status == 401 else {}
        handler.send(status, content, **headers)


@contextmanager
def fake_registry(context: ssl.SSLContext | None = None) -> Iterator[FakeRegistry]:
    registry = FakeRegistry()

    class Answering(Handler):
        def do_GET(self) -> None:
            registry.answer(self)

        do_POST = do_GET

        def send_header(self, keyword: str, value: str) -> None:
            if registry.is_dated or keyword != "Date":
                super().send_header(keyword, value)

    with serving(Answering, context) as port:
        registry.host = f"127.0.0.1:{port}"
        yield registry
