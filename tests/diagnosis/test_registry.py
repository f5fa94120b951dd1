"""The way to a registry, against servers of this machine."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pycrictl.containerd.config_toml import Site
from pycrictl.diagnosis.registry import RANGE_BYTES, Route, Trial
from tests.fakeregistry import fake_registry
from tests.once import made_once
from tests.streaming.servers import Certificates, make_certificates

LAYER = b"x" * (2 * RANGE_BYTES)


def try_route(site: Site, name: str, repository: str = "") -> Route:
    trial = Trial(site, name, repository)
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
            "/v2/a/b/manifests/1": b'{"layers": [{"digest": "sha256:1", "size": 9}]}',
            "/v2/a/b/blobs/sha256:1": LAYER,
        }
        if mode in ("token", "login"):
            fake.wanted = "Bearer t0k3n"
            fake.challenge = f'Bearer realm="{url}/token",service="s"'
        if mode == "token":
            fake.documents["/token"] = json.dumps({"token": "t0k3n"}).encode()
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


@pytest.mark.parametrize("mode", ["open", "token"])
def test_a_good_way(mode: str) -> None:
    with registry(mode) as url:
        route = try_route(Site(url), "reg", "a/b")
    assert verdicts(route) == {
        "dns": True, "tcp": True, "tls": None, "auth": True, "first byte": True, "speed": True,
    }  # fmt: skip
    assert route.trouble is None
    assert route.steps[-1].text.partition(" over ")[2].startswith("1.0 MiB (")
    assert route.skew_s is not None
    assert abs(route.skew_s) < 60


def test_a_registry_that_wants_a_login() -> None:
    with registry("login") as url:
        route = try_route(Site(url), "reg", "a/b")
    assert route.trouble is None
    assert "a login is needed" in route.steps[3].text


def test_a_repository_that_is_not_there() -> None:
    with registry() as url:
        route = try_route(Site(url), "reg", "no/such")
    assert route.trouble is not None
    assert (route.trouble.name, route.trouble.text) == ("first byte", "no repository no/such")


def test_a_server_that_is_no_registry() -> None:
    with registry("broken") as url:
        route = try_route(Site(url), "reg")
    assert route.trouble is not None
    assert route.trouble.name == "auth"
    assert "500" in route.trouble.text


def test_a_server_that_says_nothing() -> None:
    began_at = time.monotonic()
    with registry("silent") as url:
        route = try_route(Site(url), "reg")
        took_s = time.monotonic() - began_at
    assert route.trouble is not None
    assert (route.trouble.name, route.trouble.text) == ("auth", "no answer in time")
    assert took_s < 10


def test_nobody_listens() -> None:
    route = try_route(Site("http://127.0.0.1:1"), "reg")
    assert verdicts(route) == {"dns": True, "tcp": False}
    assert route.steps[-1].text == "connection refused"


def test_a_name_that_does_not_exist() -> None:
    route = try_route(Site("https://nosuch.invalid"), "reg")
    assert verdicts(route) == {"dns": False}


def test_certificates(certificates: Certificates) -> None:
    with registry(context=certificates.server_context()) as url:
        unknown = try_route(Site(url), "reg")
        known = try_route(Site(url, ca=str(certificates.ca)), "reg")
        unchecked = try_route(Site(url, verifies=False), "reg")
        missing = try_route(Site(url, ca="/no/such.pem"), "reg")
    assert unknown.trouble is not None
    assert unknown.trouble.name == "tls"
    assert unknown.trouble.text.startswith("x509: ")
    assert verdicts(known)["auth"] is True
    assert verdicts(unchecked)["auth"] is True
    assert missing.trouble is not None
    assert missing.trouble.name == "tls"
