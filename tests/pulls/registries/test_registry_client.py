"""Manifests of a registry on the loopback."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pycrictl.pulls.reference import Reference
from pycrictl.pulls.registries import registry_client
from pycrictl.pulls.registries.credentials import Credentials, Keyring
from pycrictl.pulls.registries.mirrors import CrioAccess, Endpoint, RegistryAccess
from pycrictl.pulls.registries.registry_client import Answers, ManifestRequest, ask
from pycrictl.runtime.containerd.store import Manifest
from tests.fakeregistry import LAYER, MANIFEST, FakeRegistry, fake_registry
from tests.forwardproxy import forward_proxy
from tests.waiting import wait_until

ONE, OTHER = f"sha256:{'c' * 64}", f"sha256:{'0' * 64}"
INDEX = {
    "manifests": [
        {"digest": OTHER, "size": 2, "platform": {"os": "windows", "architecture": "arm64"}},
        {"digest": OTHER, "size": 2, "platform": {"os": "linux", "architecture": "s390x"}},
        {"digest": ONE, "size": 2, "platform": {"os": "linux", "architecture": "arm64"}},
        {"digest": LAYER, "size": 2},
    ]
}
ME = Credentials("me", "se:cret")
BUSY_S = 30.0
"""Long enough for a busy machine."""

BASIC = f"Basic {base64.b64encode(b'me:se:cret').decode()}"


@pytest.fixture
def server() -> Iterator[FakeRegistry]:
    with fake_registry() as registry:
        yield registry


def question(server: FakeRegistry, credentials: Credentials | None = None) -> ManifestRequest:
    return ManifestRequest(f"{server.host}/b:1", credentials, timeout_s=BUSY_S)


def sizes(manifest: Manifest | None) -> list[int]:
    return [] if manifest is None else [layer.size_bytes for layer in manifest.layers]


def test_an_anonymous_pull(server: FakeRegistry) -> None:
    assert sizes(ask(question(server))) == [1000]
    assert [request[:3] for request in server.requests] == [("GET", "/v2/b/manifests/1", "")]


def test_an_index_leads_to_the_manifest_for_this_machine(
    server: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_client, "own_platform", lambda: "linux/arm64")
    server.documents["/v2/b/manifests/1"] = json.dumps(INDEX).encode()
    server.documents[f"/v2/b/manifests/{ONE}"] = json.dumps(MANIFEST).encode()
    assert sizes(ask(question(server))) == [1000]


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


def test_credentials_go_nowhere_else_in_clear(server: FakeRegistry) -> None:
    with fake_registry() as other:
        other.documents["/token"] = b'{"token": "good"}'
        server.wanted = "Bearer good"
        server.challenge = f'Bearer realm="http://localhost:{other.host.partition(":")[2]}/token"'
        assert ask(question(server, ME)) is None
        assert not other.requests


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_a_redirect_to_another_port_or_host_loses_the_authorization(
    server: FakeRegistry, name: str
) -> None:
    with fake_registry() as other:
        other.documents["/m"] = server.documents["/v2/b/manifests/1"]
        server.moved["/v2/b/manifests/1"] = f"http://{name}:{other.host.partition(':')[2]}/m"
        assert sizes(ask(question(server, Credentials(registry_token="mine")))) == [1000]
        assert [request[2] for request in server.requests] == ["Bearer mine"]
        assert other.requests == [("GET", "/m", "", "")]


def test_redirects_without_an_end(server: FakeRegistry) -> None:
    server.moved["/v2/b/manifests/1"] = f"http://{server.host}/v2/b/manifests/1"
    assert ask(question(server)) is None
    assert len(server.requests) == 4


def test_a_token_is_not_redirected(server: FakeRegistry) -> None:
    server.challenge, server.wanted = f'Bearer realm="http://{server.host}/token"', "Bearer good"
    with fake_registry() as other:
        server.moved["/token"] = f"http://{other.host}/token"
        assert ask(question(server, Credentials(identity_token="mine"))) is None
        assert other.requests == []


@pytest.mark.parametrize(
    "document",
    [
        b"", b"null", b'{"manifests": [5]}', b'{"layers": [], "config": 5}', b" " * (5 << 20),
    ],
    ids=lambda document: repr(document[:20]),
)  # fmt: skip
def test_odd_answers(server: FakeRegistry, document: bytes) -> None:
    server.documents["/v2/b/manifests/1"] = document
    assert ask(question(server)) is None


def test_an_answer_that_comes_late_is_dropped() -> None:
    asked, answer = threading.Event(), threading.Event()

    def late(question: str) -> str:
        asked.set()
        answer.wait()
        return question

    answers = Answers(["a"], late, timeout_s=0.0)
    assert asked.wait()
    assert answers.are_complete
    answer.set()
    wait_until(lambda: not any(thread.name == "manifest" for thread in threading.enumerate()))
    assert answers.known == {}


INSECURE = '[[registry]]\nlocation = "127.0.0.1"\ninsecure = true\n'
AUTH = {"auth": base64.b64encode(b"me:se:cret").decode()}


def files(folder: Path, registries: str, auths: dict[str, Any] | None = None) -> str:
    """Write a node's files below a folder; return it as the root."""
    conf = folder / "etc/containers/registries.conf.d/50-own.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text(registries)
    auth = folder / "run/containers/0/auth.json"
    auth.parent.mkdir(parents=True)
    auth.write_text(json.dumps({"auths": auths or {}}))
    return str(folder)


def crio(reference: str, root: str, credentials: Credentials | None = None) -> ManifestRequest:
    access = CrioAccess({}, {}, root)
    return ManifestRequest(reference, credentials, access, timeout_s=BUSY_S)


def test_a_mirror_is_asked_first_and_without_the_credentials_of_the_pull(
    server: FakeRegistry, tmp_path: Path
) -> None:
    mirror = f'[[registry.mirror]]\nlocation = "{server.host}"\ninsecure = true'
    root = files(tmp_path, f'[[registry]]\nlocation = "registry.test"\n{mirror}')
    manifest = ask(crio("registry.test/b:1", root, ME))
    assert sizes(manifest) == [1000]
    assert [request[:3] for request in server.requests] == [("GET", "/v2/b/manifests/1", "")]


def test_another_host_does_not_get_the_credentials_of_the_pull(
    server: FakeRegistry, tmp_path: Path
) -> None:
    server.challenge, server.wanted = 'Basic realm="r"', BASIC
    moved = f'[[registry]]\nprefix = "registry.test"\nlocation = "{server.host}"\ninsecure = true'
    root = files(tmp_path, moved)
    assert ask(crio("registry.test/b:1", root, ME)) is None
    assert {request[2] for request in server.requests} == {""}


def test_a_registry_behind_a_proxy(server: FakeRegistry) -> None:
    server.challenge = 'Bearer realm="http://registry.test/token",service="s"'
    server.wanted = "Bearer good"
    server.documents["/token"] = b'{"token": "good"}'
    with forward_proxy({"registry.test": server.host}) as proxy:
        access = Plain({"HTTP_PROXY": proxy.url.replace("//", "//me:se%2Fcret@")})
        assert sizes(
            ask(replace(question(server), reference="registry.test/b:1", access=access))
        ) == [1000]
    known = f"Basic {base64.b64encode(b'me:se/cret').decode()}"
    assert {request[2] for request in proxy.requests} == {known}
    assert [request[1] for request in proxy.requests] == [
        "http://registry.test/v2/b/manifests/1",
        "http://registry.test/token?service=s",
        "http://registry.test/v2/b/manifests/1",
    ]


class Plain(RegistryAccess):
    """The access to registries by plain HTTP."""

    def endpoints(self, reference: Reference) -> list[Endpoint]:
        return [Endpoint(reference.host, repository=reference.path, schemes=("http",))]


def test_without_the_credentials_of_the_pull_those_of_the_node_are_used(
    server: FakeRegistry, tmp_path: Path
) -> None:
    server.challenge, server.wanted = 'Basic realm="r"', BASIC
    root = files(tmp_path, INSECURE)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"auths": {server.host: AUTH}}))
    keyring = Keyring([str(file)], pytest.fail)
    request = replace(crio(f"{server.host}/b:1", root), keyring=keyring)
    assert sizes(ask(request)) == [1000]
    assert ask(replace(request, credentials=Credentials("you"))) is None
