"""How a runtime reaches registries: its process, its HTTP proxies, and their servers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pycrictl.base import noderoot
from pycrictl.base.processes import command_line, flags_in
from pycrictl.pulls.reference import parse
from pycrictl.pulls.registries import mirrors
from pycrictl.pulls.registries.mirrors import (
    Endpoint,
    RegistryAccess,
    access_of,
    bundle_of,
    certificates_in,
    crio_access,
)
from tests.processes import Listener

URL = "https://a.test"


def urls(known: RegistryAccess) -> list[str]:
    return [one.url() for one in known.endpoints(parse("a.test/x"))]


def test_a_containerd(tmp_path: Path) -> None:
    (tmp_path / "hosts/a.test").mkdir(parents=True)
    (tmp_path / "hosts/a.test/hosts.toml").write_text('server = "https://b.test"\n')
    config = tmp_path / "config.toml"
    plugin = 'plugins."io.containerd.cri.v1.images".registry'
    config.write_text(f'version = 3\n[{plugin}]\nconfig_path = "{tmp_path}/hosts"\n')
    path, environ = tmp_path / "c.sock", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "c.test"}
    with Listener(path, "containerd", "--config", str(config), environ=environ):
        known = access_of(f"unix://{path}", "containerd", "v2.3.4")
    assert (urls(known), known.doubt) == (["https://b.test"], "")
    assert known.proxy_of(URL) == "http://p:1"
    assert known.proxy_of("https://c.test") == ""


def test_a_crio(tmp_path: Path) -> None:
    conf = tmp_path / "registries.conf"
    conf.write_text('[[registry]]\nprefix = "a.test"\nlocation = "b.test"\n')
    path, environ = tmp_path / "c.sock", {"https_proxy": "http://p:1", "HOME": "/none"}
    with Listener(path, "crio", f"--registries-conf={conf}", environ=environ) as listener:
        known = access_of(f"unix://{path}", "cri-o", "1.36.0")
        same = crio_access(listener.pid, "")
    for one in (known, same):
        assert (urls(one), one.doubt) == (["https://b.test"], "")
        assert one.proxy_of(URL) == "http://p:1"


@pytest.mark.parametrize(
    ("name", "doubt"),
    [
        ("", "the runtime does not answer"),
        ("docker", "how docker reaches registries"),
        ("cri-o", "the process of crio is not visible from here"),
    ],
)
def test_a_runtime_of_which_nothing_is_known(tmp_path: Path, name: str, doubt: str) -> None:
    noderoot.use(str(tmp_path))  # a CRI-O of this machine would be known
    try:
        known = access_of(f"unix://{tmp_path}/none.sock", name, "1.2")
    finally:
        noderoot.use("/")
    assert known.doubt.startswith(doubt)
    assert urls(known) == [URL]


def test_a_process_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment, which may name a proxy, can be read by root alone."""

    def refuse(self: Path) -> bytes:
        if self.name == "environ":
            raise PermissionError
        return read(self)

    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", refuse)
    path = tmp_path / "c.sock"
    with Listener(path, "crio"):
        known = access_of(f"unix://{path}", "cri-o", "1.36.0")
    assert known.doubt == "only root sees the environment of crio, which may name a proxy"


def test_flags(tmp_path: Path) -> None:
    with Listener(tmp_path / "s", "x", "--a=1=2", "--b", "3", "-c", "--d") as listener:
        found = flags_in(command_line(listener.pid))
    assert {name: found[name] for name in "abd"} == {"a": "1=2", "b": "3", "d": ""}
    assert flags_in(command_line(listener.pid)) == {}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [({}, "one.pem"), ({"SSL_CERT_FILE": "/two.pem"}, "two.pem"), ({"SSL_CERT_FILE": "/no"}, "")],
)
def test_the_authorities_that_a_go_program_trusts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environ: Mapping[str, str], expected: str
) -> None:
    monkeypatch.setattr(mirrors, "_BUNDLES", ("/none.pem", "/one.pem", "/two.pem"))
    for name in ("one.pem", "two.pem"):
        (tmp_path / name).touch()
    found = bundle_of(environ, lambda path: f"{tmp_path}{path}")
    assert found == (f"{tmp_path}/{expected}" if expected else "")


# HTTP proxies, as Go's programs choose them, and the servers of registries


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
