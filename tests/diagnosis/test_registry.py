"""The way to a registry, against servers of this machine."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pycrictl.base.errors import ConnectError
from pycrictl.diagnosis import collect_node
from pycrictl.diagnosis.collect_node import NodeCollector
from pycrictl.diagnosis.registry import Route, Trial
from pycrictl.pulls.reference import Reference, parse
from pycrictl.pulls.registries.credentials import Credentials, Keyring
from pycrictl.pulls.registries.mirrors import ContainerdAccess, Endpoint, RegistryAccess
from pycrictl.runtime.containerd.daemon import CriSettings
from tests.fakeregistry import fake_registry
from tests.forwardproxy import forward_proxy
from tests.once import made_once
from tests.streams.servers import Certificates, make_certificates


def try_route(
    url: str,
    repository: str = "",
    access: RegistryAccess | None = None,
    *,
    keyring: Keyring | None = None,
    is_named: bool = True,
    step_s: float = 30.0,
    **more: Any,
) -> Route:
    scheme, _, host = url.partition("://")
    reference = parse(f"{host}/{repository}") if repository else Reference(host, "", "", "")
    endpoint = Endpoint(host, repository=reference.path, schemes=(scheme,), **more)  # type: ignore[arg-type]
    access = access or RegistryAccess()
    trial = Trial(endpoint, access, reference, keyring, is_named=is_named, step_s=step_s)
    trial.run()
    return trial.route()


@contextmanager
def registry(mode: str = "open", context: ssl.SSLContext | None = None) -> Iterator[str]:
    """One repository ``a/b`` with one tag, whose token is free for all, or a login."""
    with fake_registry(context) as fake:
        url = f"{'http' if context is None else 'https'}://{fake.host}"
        fake.documents = {
            "/v2/": b"{}",
            "/v2/a/b/tags/list": b'{"tags": ["1"]}',
            "/v2/a/b/manifests/1": b"{}",
        }
        if mode in ("token", "login"):
            fake.wanted = "Bearer t0k3n"
            fake.challenge = f'Bearer realm="{url}/token",service="s"'
        if mode == "token":
            fake.documents["/token"] = json.dumps({"token": "t0k3n"}).encode()
        fake.is_dated = mode != "no date"
        fake.is_broken = mode == "broken"
        fake.delay_s = 5.0 if mode == "silent" else 0.0
        yield url


@pytest.fixture
def certificates(run_folder: Path) -> Certificates:
    def make() -> Certificates:
        (run_folder / "doctor").mkdir()
        return make_certificates(run_folder / "doctor")

    return made_once(run_folder / "doctor-certificates", make)


def verdicts(route: Route) -> dict[str, bool | None]:
    return {step.name: step.is_good for step in route.steps}


GOOD = {"dns": True, "tcp": True, "tls": None, "auth": True, "first byte": True}


@pytest.mark.parametrize(
    ("mode", "repository", "trouble", "said"),
    [
        ("open", "a/b", "", "status 200 ("),
        ("token", "a/b", "", "status 200 ("),
        ("login", "a/b", "", "a login is needed"),
        ("no date", "a/b", "", "status 200 ("),
        ("open", "no/such", "first byte", "it does not have no/such"),
        ("open", "a/b:1", "", "status 200 ("),
        ("open", "a/b:2", "first byte", "it does not have a/b:2"),
        ("broken", "", "auth", "/v2/ is answered with 500"),
        ("silent", "", "auth", "no answer in time"),
    ],
)
def test_the_way(mode: str, repository: str, trouble: str, said: str) -> None:
    with registry(mode) as url:
        route = try_route(url, repository, step_s=2.0 if mode == "silent" else 30.0)
    assert (route.failure.name if route.failure else "") == trouble
    assert any(said in step.text for step in route.steps)
    if mode in ("open", "token") and not trouble:
        assert verdicts(route) == GOOD
        assert abs(route.skew_s or 999) < 60


@pytest.mark.parametrize(
    ("url", "steps", "said"),
    [
        ("http://127.0.0.1:1", {"dns": True, "tcp": False}, "connection refused"),
        ("https://nosuch.invalid", {"dns": False}, ""),
    ],
)
def test_where_no_server_is(url: str, steps: dict[str, bool], said: str) -> None:
    route = try_route(url)
    assert verdicts(route) == steps
    assert said in route.steps[-1].text


def test_what_a_server_lacks_is_a_failure_only_if_the_user_named_it() -> None:
    with registry() as url:
        for route in (
            try_route(url, "no/such:1", is_named=False),
            try_route(url, "no/such:1", is_mirror=True),
        ):
            assert verdicts(route)["first byte"] is None
            assert route.works


@pytest.mark.parametrize(
    ("challenge", "password", "said"),
    [
        ('Basic realm="r"', "right", "accepted"),
        ('Basic realm="r"', "wrong", "refused"),
        ('Bearer realm="http://HOST/token",service="s"', "right", "accepted"),
    ],
)
def test_a_login(tmp_path: Path, challenge: str, password: str, said: str) -> None:
    file = tmp_path / "auth.json"
    with fake_registry() as fake:
        entry = {"username": "me", "password": password}
        file.write_text(json.dumps({"auths": {fake.host: entry}}))
        fake.documents |= {"/v2/": b"{}", "/token": b'{"token": "t0k3n"}'}
        fake.challenge = challenge.replace("HOST", fake.host)
        is_basic = challenge.startswith("Basic")
        fake.wanted = Credentials("me", "right").basic if is_basic else "Bearer t0k3n"
        keyring = Keyring([str(file)], pytest.fail)
        route = try_route(f"http://{fake.host}", "b:1", keyring=keyring)
    (step,) = (step for step in route.steps if step.name == "auth")
    assert step.text.partition(" (")[0] == f"the credentials of {file} are {said}"
    assert (step.is_good, route.credentials) == (said == "accepted", str(file))
    assert verdicts(route).get("first byte") == (True if said == "accepted" else None)


def test_the_way_through_a_proxy(tmp_path: Path) -> None:
    made = make_certificates(tmp_path, "DNS:reg.test")
    context = made.server_context()
    with registry(context=context) as url, forward_proxy({}) as proxy:
        proxy.servers = {"reg.test:443": url.removeprefix("https://")}
        access = RegistryAccess({"HTTPS_PROXY": proxy.url.replace("//", "//me:secret@")})
        route = try_route("https://reg.test", "a/b", access, authorities=(made.ca,))
        lost = try_route("https://other.test", "a/b", access)
    assert verdicts(route) == {**GOOD, "tls": True}
    assert "secret" not in repr(route)
    assert route.proxy.endswith(f"@{proxy.url.removeprefix('http://')}")
    assert {method for method, _, _ in proxy.requests} == {"CONNECT"}
    assert {known for _, _, known in proxy.requests} == {"Basic bWU6c2VjcmV0"}
    assert lost.failure is not None
    assert (lost.failure.name, lost.failure.text) == (
        "tls",
        "Tunnel connection failed: 502 Bad Gateway",
    )


@pytest.mark.parametrize("is_mirror", [True, False])
def test_an_invalid_address_does_not_keep_others_from_being_tested(
    is_mirror: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect() -> NoReturn:
        raise ConnectError("no runtime here")

    with registry() as url:
        host = url.removeprefix("http://")
        if is_mirror:
            hosts = tmp_path / host / "hosts.toml"
            hosts.parent.mkdir()
            hosts.write_text(f'server = "{url}"\n[host."https://r:abc"]')
            settings = CriSettings({"registry": {"config_path": str(tmp_path)}})
            known = ContainerdAccess(settings, (1, 6))
            monkeypatch.setattr(collect_node, "access_of", lambda *_: known)
        collector = NodeCollector([*([] if is_mirror else ["r:abc"]), f"{host}/a/b"])
        facts = collector.collect(connect, tmp_path, dict)
    assert [(route.url, route.failure) for route in facts.routes] == [(url, None)]
    (missing,) = (source for source in facts.missing if source.source.startswith("registry"))
    assert missing.source == "registry https://r:abc"
    assert "abc" in missing.reason


def test_certificates(certificates: Certificates) -> None:
    with registry(context=certificates.server_context()) as url:
        unknown = try_route(url)
        known = try_route(url, authorities=(str(certificates.ca),))
        trusted = try_route(url, access=RegistryAccess(bundle=str(certificates.ca)))
        unchecked = try_route(url, verifies=False)
        missing = try_route(url, authorities=("/no/such.pem",))
    assert unknown.failure is not None
    assert unknown.failure.name == "tls"
    assert unknown.failure.text.startswith("x509: ")
    assert verdicts(known)["auth"] is verdicts(trusted)["auth"] is True
    assert verdicts(unchecked)["auth"] is True
    assert missing.failure is not None
    assert missing.failure.name == "tls"
