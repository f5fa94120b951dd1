"""Manifests: of a registry of our own on the loopback, and by a program in skopeo's place."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.containerd.store import Manifest
from pycrictl.progress.registry import client, manifest
from pycrictl.progress.registry.client import Credentials, Question, credentials_of
from pycrictl.progress.registry.manifest import Inquiry, ask, platform_digest
from tests.serving import Handler, serving

LAYER, CONFIG, ONE = (f"sha256:{letter * 64}" for letter in "abc")
MANIFEST: dict[str, Any] = {
    "config": {"digest": CONFIG},
    "layers": [{"digest": LAYER, "size": 1000, "mediaType": "application/x-tar"}],
}
INDEX = {
    "manifests": [
        {"digest": f"sha256:{'0' * 64}", "platform": {"os": "windows", "architecture": "amd64"}},
        {"digest": f"sha256:{'1' * 64}", "platform": {"os": "linux", "architecture": "s390x"}},
        {"digest": ONE, "platform": {"os": "linux", "architecture": "amd64"}},
        {"digest": ONE, "platform": {"os": "linux", "architecture": "arm64", "variant": "v8"}},
        {"digest": LAYER},
    ]
}
ME = Credentials("me", "se:cret")
BASIC = f"Basic {base64.b64encode(b'me:se:cret').decode()}"


class FakeRegistry:
    """A registry, and the requests that it got: method, path, authorization, body."""

    def __init__(self) -> None:
        self.documents: dict[str, bytes] = {"/v2/b/manifests/1": json.dumps(MANIFEST).encode()}
        self.challenge = ""
        self.wanted = ""
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
        if content is None:
            status, content = 404, b"{}"
        elif path.startswith("/v2/") and self.wanted not in ("", authorization):
            status, content = 401, b"{}"
        headers = {"WWW_Authenticate": self.challenge} if status == 401 else {}
        handler.send(status, content, **headers)


@contextmanager
def running() -> Iterator[FakeRegistry]:
    registry = FakeRegistry()

    class Answering(Handler):
        def do_GET(self) -> None:
            registry.answer(self)

        do_POST = do_GET

    with serving(Answering) as port:
        registry.host = f"127.0.0.1:{port}"
        yield registry


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    """A registry, and no skopeo; who asks has time, also on a busy machine."""
    monkeypatch.setattr(manifest, "TIMEOUT_S", 30.0)
    monkeypatch.setenv("PATH", str(tmp_path))
    with running() as registry:
        yield registry


def question(server: FakeRegistry, credentials: Credentials | None = None) -> Question:
    return Question(f"{server.host}/b:1", credentials)


def sizes(found: Manifest | None) -> list[int]:
    return [] if found is None else [layer.size_bytes for layer in found.layers]


def test_an_anonymous_pull(server: FakeRegistry) -> None:
    assert sizes(ask(question(server))) == [1000]
    assert [request[:3] for request in server.requests] == [("GET", "/v2/b/manifests/1", "")]


def test_an_index_leads_to_the_manifest_for_this_machine(
    server: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    server.documents["/v2/b/manifests/1"] = json.dumps(INDEX).encode()
    server.documents[f"/v2/b/manifests/{ONE}"] = json.dumps(MANIFEST).encode()
    assert sizes(ask(question(server))) == [1000]


def test_a_password(server: FakeRegistry) -> None:
    server.challenge, server.wanted = 'Basic realm="r"', BASIC
    assert ask(question(server)) is None
    assert sizes(ask(question(server, ME))) == [1000]
    assert sizes(ask(question(server, Credentials(username="you", password="no")))) == []


@pytest.mark.parametrize("credentials", [None, ME])
def test_a_token(server: FakeRegistry, credentials: Credentials | None) -> None:
    realm = f"http://{server.host}/token"
    scope = "repository:b:pull"
    server.challenge = f'Bearer realm="{realm}",service="s",scope="{scope}"'
    server.wanted = "Bearer good"
    server.documents["/token"] = b'{"token": "good"}'
    assert sizes(ask(question(server, credentials))) == [1000]
    _, (method, path, authorization, _), _ = server.requests
    assert (method, path) == ("GET", "/token?service=s&scope=repository%3Ab%3Apull")
    assert authorization == (BASIC if credentials else "")


def test_an_identity_token_is_exchanged(server: FakeRegistry) -> None:
    server.challenge = f'Bearer realm="http://{server.host}/token",service="s"'
    server.wanted = "Bearer good"
    server.documents["/token"] = b'{"access_token": "good"}'
    assert sizes(ask(question(server, Credentials(identity_token="mine")))) == [1000]
    method, path, _, body = server.requests[1]
    assert (method, path) == ("POST", "/token")
    assert body == "service=s&grant_type=refresh_token&refresh_token=mine"


def test_a_registry_token_is_sent_as_it_is(server: FakeRegistry) -> None:
    server.wanted = "Bearer mine"
    assert sizes(ask(question(server, Credentials(registry_token="mine")))) == [1000]


def test_credentials_go_nowhere_else_in_clear(server: FakeRegistry) -> None:
    with running() as other:
        other.documents["/token"] = b'{"token": "good"}'
        server.wanted = "Bearer good"
        server.challenge = f'Bearer realm="http://localhost:{other.host.partition(":")[2]}/token"'
        assert ask(question(server, ME)) is None
        assert not other.requests


@pytest.mark.parametrize(
    "document",
    [
        b"", b"{", b"[]", b"null", b'{"manifests": [5]}', b'{"manifests": []}',
        b'{"layers": [], "config": 5}', b"[" * 100_000, b" " * (5 << 20),
        json.dumps({"manifests": [{"digest": ONE, "platform": 5}]}).encode(),
    ],
    ids=lambda document: repr(document[:20]),
)  # fmt: skip
def test_odd_answers(server: FakeRegistry, document: bytes) -> None:
    server.documents["/v2/b/manifests/1"] = document
    assert ask(question(server)) is None


def test_a_slow_registry_is_given_up(server: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "TIMEOUT_S", 0.3)
    server.delay_s = 2.0
    inquiry = Inquiry(question(server), ask)
    assert not inquiry.is_over
    time.sleep(0.35)
    assert inquiry.is_over
    assert inquiry.manifest is None


def test_nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with running() as gone:
        pass
    assert ask(question(gone)) is None


def test_machines() -> None:
    index = json.dumps(INDEX).encode()
    assert platform_digest(index, "x86_64") == platform_digest(index, "aarch64") == ONE
    assert platform_digest(index, "s390x") == f"sha256:{'1' * 64}"
    assert platform_digest(index, "riscv64") == ""
    arm = [{"digest": f"{v}", "platform": {"os": "linux", "architecture": "arm", "variant": v}}
           for v in ("v5", "v6", "v7")]  # fmt: skip
    assert platform_digest(json.dumps({"manifests": arm}).encode(), "armv7l") == "v7"


def test_hosts_that_are_reached_directly() -> None:
    exceptions = "localhost, .corp.example,*.svc,10.0.0.1"
    names = ("localhost:5000", "r.corp.example", "corp.example", "a.svc", "10.0.0.1:80")
    assert all(client._is_direct(name, exceptions) for name in names)
    assert not client._is_direct("quay.io", exceptions)
    assert client._is_direct("quay.io", "*")
    assert not client._is_direct("quay.io", "")


def test_credentials_of_a_request() -> None:
    auth = cri_pb2.AuthConfig
    assert credentials_of(auth()) is None
    assert credentials_of(auth(username="me", password="se:cret")) == ME
    assert credentials_of(auth(auth=base64.b64encode(b"me:se:cret").decode())) == ME
    assert credentials_of(auth(auth="%%%")) is None
    assert credentials_of(auth(identity_token="t")) == Credentials(identity_token="t")
    assert "cret" not in repr(ME)


SKOPEO = """#!/bin/sh
# Does what skopeo does with its arguments, and keeps them.
echo "$@" >>"$0.args"
tr '\\0' ' ' </proc/$$/cmdline >>"$0.args"
while [ $# -gt 0 ]; do
  if [ "$1" = --authfile ]; then cat "$2" >"$0.auth"; fi
  shift
done
env | grep -i proxy >"$0.env"
cat "$0.answer" && exit $(cat "$0.status")
"""


@pytest.fixture
def skopeo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(manifest, "TIMEOUT_S", 30.0)
    program = tmp_path / "skopeo"
    program.write_text(SKOPEO)
    program.chmod(0o755)
    (tmp_path / "skopeo.answer").write_text(json.dumps(MANIFEST))
    (tmp_path / "skopeo.status").write_text("0")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return program


def said(skopeo: Path, what: str) -> str:
    return skopeo.with_suffix(f".{what}").read_text()


def test_skopeo_is_asked_first(skopeo: Path) -> None:
    environ = {"HTTPS_PROXY": "http://p:1", "CONTAINERS_REGISTRIES_CONF": "/r.conf"}
    assert sizes(ask(Question("busybox", None, environ, verifies_tls=False))) == [1000]
    assert said(skopeo, "args").splitlines()[0] == (
        "--registries-conf /r.conf inspect --raw --tls-verify=false "
        "docker://docker.io/library/busybox:latest"
    )
    assert "HTTPS_PROXY=http://p:1" in said(skopeo, "env")


def open_files() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}


def test_credentials_are_never_in_arguments_or_on_a_disk(skopeo: Path) -> None:
    before = open_files()
    assert sizes(ask(Question("r.io/b:1", ME))) == [1000]
    entry = {"auth": base64.b64encode(b"me:se:cret").decode()}
    assert json.loads(said(skopeo, "auth")) == {"auths": {"r.io": entry}}
    assert "--authfile /proc/self/fd/" in said(skopeo, "args")
    for secret in ("se:cret", entry["auth"]):
        assert secret not in said(skopeo, "args")
    assert open_files() == before
    assert sizes(ask(Question("r.io/b:1", Credentials(identity_token="tok")))) == [1000]
    assert json.loads(said(skopeo, "auth"))["auths"]["r.io"]["identitytoken"] == "tok"


def test_when_skopeo_fails_nobody_else_is_asked(skopeo: Path) -> None:
    (skopeo.parent / "skopeo.status").write_text("1")
    with running() as server:
        assert ask(Question(f"{server.host}/b:1")) is None
        assert not server.requests
        # It takes no registry token but in its arguments.
        assert ask(Question(f"{server.host}/b:1", Credentials(registry_token="t"))) is not None


def test_skopeo_is_not_waited_for(skopeo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "TIMEOUT_S", 0.3)
    skopeo.write_text("#!/bin/sh\nexec sleep 1000\n")
    began = time.monotonic()
    assert ask(Question("r.io/b:1")) is None
    assert time.monotonic() - began < 10
