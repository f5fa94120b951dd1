"""HTTP proxies, as Go's programs choose them, and the servers of registries."""

from __future__ import annotations

from pathlib import Path

import pytest

from pycrictl.pulls.reference import parse
from pycrictl.pulls.registries.endpoint import Endpoint, RegistryAccess, certificates_in

PROXY = {"HTTPS_PROXY": "http://p:3128", "http_proxy": "q:80"}


@pytest.mark.parametrize(
    ("environ", "url", "proxy"),
    [
        ({}, "https://r.test", ""),
        (PROXY, "https://r.test", "http://p:3128"),
        (PROXY, "http://r.test", "http://q:80"),
        ({"HTTPS_PROXY": "http://a", "https_proxy": "http://b"}, "https://r.test", "http://a"),
        (PROXY, "https://localhost:5000", ""),
        (PROXY, "https://127.8.0.1", ""),
        (PROXY, "https://[::1]:5000", ""),
        (PROXY, "https://r.test:abc", "http://p:3128"),
    ],
)
def test_the_proxy_of_a_url(environ: dict[str, str], url: str, proxy: str) -> None:
    assert RegistryAccess(environ).proxy_of(url) == proxy


@pytest.mark.parametrize(
    ("no_proxy", "host", "is_direct"),
    [
        ("*", "r.test", True),
        (" , r.test ", "r.test", True),
        ("R.TEST", "r.test", True),
        ("r.test", "sub.r.test", True),
        ("r.test", "xr.test", False),
        (".r.test", "sub.r.test", True),
        (".r.test", "r.test", False),
        ("*.r.test", "r.test", False),
        ("r.test:5000", "r.test:5000", True),
        ("r.test:5000", "r.test", False),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("10.0.0.0/99", "10.1.2.3", False),
        ("10.1.2.3", "10.1.2.3:5000", True),
        ("10.1.2.3:80", "10.1.2.3:5000", False),
        ("fd00::/8", "[fd00::1]:5000", True),
        ("[fd00::1]:5000", "[fd00::1]:5000", True),
        ("[fd00::1]:80", "[fd00::1]:5000", False),
    ],
)
def test_exceptions(no_proxy: str, host: str, is_direct: bool) -> None:
    access = RegistryAccess({**PROXY, "no_proxy": no_proxy})
    assert (access.proxy_of(f"https://{host}/v2/") == "") == is_direct


def test_an_unknown_runtime_asks_the_registry_itself() -> None:
    access = RegistryAccess(doubt="why")
    (own,) = access.endpoints(parse("r.test/a/b:1"))
    assert own == Endpoint("r.test", repository="a/b")
    (hub,) = access.endpoints(parse("b"))
    assert hub.url() == "https://registry-1.docker.io"
    (near,) = access.endpoints(parse("localhost:5000/b"))
    assert (near.schemes, near.verifies) == (("http", "https"), False)


def test_certificates_in_a_folder(tmp_path: Path) -> None:
    assert certificates_in(tmp_path / "none") == ((), ())
    for name in ("b.crt", "a.crt", "x.cert", "x.key", "y.cert", "z.pem"):
        (tmp_path / name).touch()
    authorities, identities = certificates_in(tmp_path)
    assert authorities == (f"{tmp_path}/a.crt", f"{tmp_path}/b.crt")
    assert identities == ((f"{tmp_path}/x.cert", f"{tmp_path}/x.key"), (f"{tmp_path}/y.cert", ""))
