"""How a runtime reaches registries: its process, its HTTP proxies, and their servers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pycrictl.base import noderoot
from pycrictl.pulls.reference import parse
from pycrictl.pulls.registries import mirrors
from pycrictl.pulls.registries.credentials import Credentials
from pycrictl.pulls.registries.mirrors import (
    ContainerdAccess,
    CrioAccess,
    Endpoint,
    RegistryAccess,
    access_of,
    bundle_of,
    crio_access,
)
from pycrictl.runtime.containerd.daemon import read_settings
from tests.processes import Listener

URL = "https://a.test"


def urls(known: RegistryAccess) -> list[str]:
    return [endpoint.url() for endpoint in known.endpoints(parse("a.test/x"))]


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
    for registries in (known, same):
        assert (urls(registries), registries.doubt) == (["https://b.test"], "")
        assert registries.proxy_of(URL) == "http://p:1"


@pytest.mark.parametrize(
    ("name", "doubt"),
    [
        ("", "the runtime does not answer"),
        ("docker", "docker's settings are not read"),
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
    bundle = bundle_of(environ, lambda path: f"{tmp_path}{path}")
    assert bundle == (f"{tmp_path}/{expected}" if expected else "")


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
        ("r.test", "sub.r.test", True),
        (".r.test", "sub.r.test", True),
        (".r.test", "r.test", False),
        ("*.r.test", "r.test", False),
        ("r.test:5000", "r.test:5000", True),
        ("r.test:5000", "r.test", False),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/99", "10.1.2.3", False),
        ("10.1.2.3:80", "10.1.2.3:5000", False),
        ("fd00::/8", "[fd00::1]:5000", True),
        ("[fd00::1]:80", "[fd00::1]:5000", False),
    ],
)
def test_exceptions(no_proxy: str, host: str, is_direct: bool) -> None:
    access = RegistryAccess({**PROXY, "no_proxy": no_proxy})
    assert (access.proxy_of(f"https://{host}/v2/") == "") == is_direct


# containerd's, from its configuration and hosts.toml


HOSTS = """\
server = "https://registry-1.docker.io"

[host."https://mirror.example:5000"]
  capabilities = ["pull", "resolve"]
  ca = "ca.pem"
  client = [["me.pem", "me.key"], "both.pem"]

[host."http://10.0.0.9/v2"]
  skip_verify = true

[host."cache.example/docker.io"]
  capabilities = ["pull"]

[host."https://odd.example/api"]
  override_path = true

[host."https://push.example"]
  capabilities = ["push"]
"""


def access(
    folder: Path, settings: str, version: tuple[int, int] = (1, 6), cri: str = ""
) -> ContainerdAccess:
    """Write containerd's configuration with settings of ``registry`` and of the CRI plugin."""
    plugin = 'plugins."io.containerd.grpc.v1.cri"'
    config = folder / "config.toml"
    config.write_text(f"version = 2\n[{plugin}]\n{cri}\n[{plugin}.registry]\n{settings}")
    return ContainerdAccess(read_settings(config), version)


def hosts(folder: Path, name: str, text: str = HOSTS) -> str:
    """Write a ``hosts.toml``; return the ``config_path``."""
    (folder / "certs.d" / name).mkdir(parents=True)
    (folder / "certs.d" / name / "hosts.toml").write_text(text)
    return f'config_path = "{folder}/certs.d"'


def urls_of(endpoints: list[Endpoint]) -> list[str]:
    return [endpoint.url() for endpoint in endpoints]


def test_hosts_come_in_their_order_and_the_registry_last(tmp_path: Path) -> None:
    servers = access(tmp_path, hosts(tmp_path, "docker.io")).endpoints(parse("busybox"))
    folder, origin = tmp_path / "certs.d/docker.io", str(tmp_path / "certs.d/docker.io/hosts.toml")
    assert servers[0] == Endpoint(
        "mirror.example:5000",
        repository="library/busybox",
        is_mirror=True,
        authorities=(f"{folder}/ca.pem",),
        identities=((f"{folder}/me.pem", f"{folder}/me.key"), (f"{folder}/both.pem", "")),
        namespace="docker.io",
        origin=origin,
    )
    assert [(endpoint.url(), endpoint.path) for endpoint in servers[1:]] == [
        ("http://10.0.0.9", "/v2"),
        ("https://cache.example/docker.io", "/docker.io/v2"),
        ("https://odd.example/api", "/api"),
        ("https://registry-1.docker.io", "/v2"),
    ]
    assert [endpoint.verifies for endpoint in servers] == [True, False, True, True, True]
    assert [endpoint.namespace for endpoint in servers][-2:] == ["docker.io", ""]


@pytest.mark.parametrize(
    ("folder", "host", "expected"),
    [
        ("r.test_5000_", "r.test:5000", True),
        ("r.test:5000", "r.test:5000", True),
        ("_default", "r.test:5000", True),
        ("r.test", "r.test:5000", False),
    ],
)
def test_the_folder_of_a_registry(tmp_path: Path, folder: str, host: str, expected: bool) -> None:
    known = access(tmp_path, hosts(tmp_path, folder, '[host."https://m"]\n'))
    endpoints = urls_of(known.endpoints(parse(f"{host}/a")))
    assert endpoints == [*(["https://m"] if expected else []), f"https://{host}"]


def test_without_hosts_toml_a_folder_has_certificates(tmp_path: Path) -> None:
    settings = hosts(tmp_path, "r.test", "server = [")
    (tmp_path / "certs.d/r.test/a.crt").touch()
    (own,) = access(tmp_path, settings).endpoints(parse("r.test/a"))
    assert own.authorities == (f"{tmp_path}/certs.d/r.test/a.crt",)


def test_settings_of_the_registry_itself(tmp_path: Path) -> None:
    settings = hosts(tmp_path, "r.test", 'ca = "/a.pem"\nskip_verify = true\n')
    (own,) = access(tmp_path, settings).endpoints(parse("r.test/a"))
    assert (own.url(), own.authorities, own.verifies) == ("https://r.test", ("/a.pem",), False)


MIRRORS = """
[plugins."io.containerd.grpc.v1.cri".registry.mirrors."docker.io"]
endpoint = ["http://127.0.0.1:5999", "https://m.test/x", "m2.test", "localhost:1"]
[plugins."io.containerd.grpc.v1.cri".registry.mirrors."r.test"]
endpoint = ["https://m.test", "https://r.test"]
[plugins."io.containerd.grpc.v1.cri".registry.mirrors."*"]
endpoint = ["https://all.test"]
[plugins."io.containerd.grpc.v1.cri".registry.configs."m.test".tls]
ca_file = "/ca.pem"
cert_file = "/me.pem"
key_file = "/me.key"
insecure_skip_verify = true
"""


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        (
            "busybox:1",
            [
                ("http://127.0.0.1:5999", "/v2"),
                ("https://m.test/x", "/x"),
                ("https://m2.test", "/v2"),
                ("http://localhost:1", "/v2"),
                ("https://registry-1.docker.io", "/v2"),
            ],
        ),
        ("r.test/a", [("https://m.test", "/v2"), ("https://r.test", "/v2")]),
        ("o.test/a", [("https://all.test", "/v2"), ("https://o.test", "/v2")]),
        ("127.0.0.1:5000/a", [("https://all.test", "/v2"), ("http://127.0.0.1:5000", "/v2")]),
    ],
)
def test_mirrors(tmp_path: Path, reference: str, expected: list[tuple[str, str]]) -> None:
    endpoints = access(tmp_path, MIRRORS).endpoints(parse(reference))
    assert [(endpoint.url(), endpoint.path) for endpoint in endpoints] == expected
    assert {endpoint.origin for endpoint in endpoints if endpoint.is_mirror} == {
        str(tmp_path / "config.toml")
    }


def test_the_settings_of_a_mirror(tmp_path: Path) -> None:
    known, reference = access(tmp_path, MIRRORS), parse("r.test/a")
    mirror, own = known.endpoints(reference)
    assert (mirror.verifies, mirror.authorities) == (False, ("/ca.pem",))
    assert mirror.identities == (("/me.pem", "/me.key"),)
    assert own.verifies
    given = Credentials("you")
    assert known.credentials_for(mirror, reference, given) == given


@pytest.mark.parametrize(
    ("version", "path", "cri", "expected", "is_trap"),
    [
        ((1, 6), "", "", "r.test", False),
        ((2, 2), "", "use_local_image_pull = true", "m.test", False),
        ((2, 2), "", "", "r.test", True),
        ((1, 6), "{a}:{b}", "", "m.test", False),
        ((2, 3), "{a}:{b}", "", "r.test", True),
        ((2, 3), "{a}:{b}", "max_concurrent_downloads = 5", "m.test", False),
        ((2, 3), "/none:/neither", "", "r.test", False),
    ],
)
def test_lists_of_folders(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: tuple[int, int],
    path: str,
    cri: str,
    expected: str,
    is_trap: bool,
) -> None:
    """containerd's transfer service (2.1 and later) takes a list of folders for one folder."""
    hosts(tmp_path / "b", "r.test", 'server = "https://m.test"\n')
    folders = {"a": f"{tmp_path}/a", "b": f"{tmp_path}/b/certs.d"}
    monkeypatch.setattr(mirrors, "DEFAULT_CONFIG_PATH", f"{folders['a']}:{folders['b']}")
    known = access(tmp_path, f'config_path = "{path.format(**folders)}"', version, cri)
    assert urls_of(known.endpoints(parse("r.test/a"))) == [f"https://{expected}"]
    assert bool(known.trap) == is_trap


# CRI-O's, from its files below a folder


REGISTRIES_CONF = """
[[registry]]
prefix = "a.test/team"
location = "b.test/moved"
[[registry.mirror]]
location = "m.test/proxy"
insecure = true
[[registry.mirror]]
location = "digests.test"
pull-from-mirror = "digest-only"
[[registry.mirror]]
location = "tags.test"
pull-from-mirror = "tag-only"
[[registry]]
location = "a.test"
[[registry]]
location = "no.test"
blocked = true
[[registry]]
prefix = "r.wild.test"
mirror-by-digest-only = true
[[registry.mirror]]
location = "w.test"
"""
DIGEST = f"@sha256:{'1' * 64}"


def write(root: Path, path: str, content: str) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


def servers(access: CrioAccess, reference: str) -> list[str]:
    return [
        f"{endpoint.url()} {endpoint.repository}" for endpoint in access.endpoints(parse(reference))
    ]


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        (
            f"a.test/team/x{DIGEST}",
            [
                "https://m.test proxy/x",
                "https://digests.test x",
                "https://b.test moved/x",
            ],
        ),
        (
            "a.test/team/x:1",
            ["https://m.test proxy/x", "https://tags.test x", "https://b.test moved/x"],
        ),
        ("a.test/teams/x:1", ["https://a.test teams/x"]),
        ("x:1", ["https://registry-1.docker.io library/x"]),
        ("no.test/x:1", []),
        ("r.wild.test:5000/x:1", ["https://r.wild.test:5000 x"]),
        (f"r.wild.test/x{DIGEST}", ["https://w.test x", "https://r.wild.test x"]),
    ],
)
def test_the_servers_of_an_image(tmp_path: Path, reference: str, expected: list[str]) -> None:
    write(tmp_path, "/etc/containers/registries.conf", REGISTRIES_CONF)
    assert servers(CrioAccess({}, {}, str(tmp_path)), reference) == expected


def test_what_a_table_says_of_its_server(tmp_path: Path) -> None:
    write(tmp_path, "/etc/containers/registries.conf", REGISTRIES_CONF)
    for name in ("m.test/a.crt", "m.test/me.cert", "m.test/me.key"):
        write(tmp_path, f"/etc/containers/certs.d/{name}", "")
    folder = tmp_path / "etc/containers/certs.d/m.test"
    mirror, *_ = CrioAccess({}, {}, str(tmp_path)).endpoints(parse("a.test/team/x"))
    assert mirror == Endpoint(
        "m.test",
        repository="proxy/x",
        schemes=("https", "http"),
        is_mirror=True,
        verifies=False,
        authorities=(str(folder / "a.crt"),),
        identities=((str(folder / "me.cert"), str(folder / "me.key")),),
        origin="/etc/containers/registries.conf",
    )


@pytest.mark.parametrize(
    ("flags", "file", "expected"),
    [
        ({}, "/etc/containers/registries.conf", True),
        ({}, "/etc/containers/registries.conf.d/a/50.conf", True),
        ({"registries-conf": "/x.conf"}, "/x.conf", True),
        ({"registries-conf": "/x.conf"}, "/etc/containers/registries.conf", False),
        ({"registries-conf-dir": "/d"}, "/d/1.conf", True),
        ({}, "/etc/containers/registries.conf.d/readme.txt", False),
    ],
)
def test_the_files_that_crio_reads(
    tmp_path: Path, flags: dict[str, str], file: str, expected: bool
) -> None:
    write(tmp_path, file, '[[registry]]\nprefix = "a.test"\nlocation = "b.test"\n')
    access = CrioAccess(flags, {}, str(tmp_path))
    assert servers(access, "a.test/x") == [f"https://{'b' if expected else 'a'}.test x"]


def test_a_later_file_overrides_an_earlier_one_and_a_bad_one_changes_nothing(
    tmp_path: Path,
) -> None:
    folder = "/etc/containers/registries.conf.d"
    write(tmp_path, f"{folder}/1.conf", '[[registry]]\nprefix = "a.test"\nlocation = "b.test"\n')
    write(tmp_path, f"{folder}/2.conf", '[[registry]]\nprefix = "a.test"\nlocation = "c.test"\n')
    write(tmp_path, f"{folder}/3.conf", "[[")
    assert servers(CrioAccess({}, {}, str(tmp_path)), "a.test/x") == ["https://c.test x"]
