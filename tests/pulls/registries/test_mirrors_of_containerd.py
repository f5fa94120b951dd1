"""containerd's registries, from its configuration and ``hosts.toml``."""

from __future__ import annotations

from pathlib import Path

import pytest

from pycrictl.pulls.reference import parse
from pycrictl.pulls.registries import mirrors
from pycrictl.pulls.registries.credentials import Credentials, Login
from pycrictl.pulls.registries.mirrors import ContainerdAccess, Endpoint
from pycrictl.runtime.containerd.daemon import read_settings

HOSTS = """\
server = "https://registry-1.docker.io"

[host."https://mirror.example:5000"]
  capabilities = ["pull", "resolve"]
  ca = "ca.pem"
  client = [["me.pem", "me.key"], "both.pem"]
  [host."https://mirror.example:5000".header]
    x-team = ["a", "b"]
    x-one = "1"

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


def urls(found: list[Endpoint]) -> list[str]:
    return [one.url() for one in found]


def test_hosts_come_in_their_order_and_the_registry_last(tmp_path: Path) -> None:
    found = access(tmp_path, hosts(tmp_path, "docker.io")).endpoints(parse("busybox"))
    folder, origin = tmp_path / "certs.d/docker.io", str(tmp_path / "certs.d/docker.io/hosts.toml")
    assert found[0] == Endpoint(
        "mirror.example:5000",
        repository="library/busybox",
        is_mirror=True,
        authorities=(f"{folder}/ca.pem",),
        identities=((f"{folder}/me.pem", f"{folder}/me.key"), (f"{folder}/both.pem", "")),
        headers={"x-team": "a", "x-one": "1"},
        namespace="docker.io",
        origin=origin,
    )
    assert [(one.url(), one.path, one.has_tags) for one in found[1:]] == [
        ("http://10.0.0.9", "/v2", True),
        ("https://cache.example/docker.io", "/docker.io/v2", False),
        ("https://odd.example/api", "/api", True),
        ("https://registry-1.docker.io", "/v2", True),
    ]
    assert [one.verifies for one in found] == [True, False, True, True, True]
    assert [one.namespace for one in found][-2:] == ["docker.io", ""]


def test_a_tag_is_asked_only_of_servers_that_resolve(tmp_path: Path) -> None:
    known = access(tmp_path, hosts(tmp_path, "docker.io"))
    assert "https://cache.example/docker.io" not in urls(known.endpoints(parse("busybox:1")))
    digest = f"busybox:1@sha256:{'1' * 64}"
    assert "https://cache.example/docker.io" in urls(known.endpoints(parse(digest)))


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
    found = urls(known.endpoints(parse(f"{host}/a")))
    assert found == [*(["https://m"] if expected else []), f"https://{host}"]


def test_without_hosts_toml_a_folder_has_certificates(tmp_path: Path) -> None:
    settings = hosts(tmp_path, "r.test", "server = [")
    (tmp_path / "certs.d/r.test/a.crt").touch()
    (own,) = access(tmp_path, settings).endpoints(parse("r.test/a"))
    assert own.authorities == (f"{tmp_path}/certs.d/r.test/a.crt",)


@pytest.mark.parametrize(
    ("version", "authorities", "verifies"), [((1, 7), ("/a.pem",), False), ((1, 6), (), True)]
)
def test_settings_of_the_registry_itself(
    tmp_path: Path, version: tuple[int, int], authorities: tuple[str, ...], verifies: bool
) -> None:
    """containerd 1.6 ignores them."""
    settings = hosts(tmp_path, "r.test", 'ca = "/a.pem"\nskip_verify = true\n')
    (own,) = access(tmp_path, settings, version).endpoints(parse("r.test/a"))
    found = own.url(), own.authorities, own.verifies
    assert found == ("https://r.test", authorities, verifies)


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
[plugins."io.containerd.grpc.v1.cri".registry.configs."m.test".auth]
username = "me"
password = "secret"
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
    found = access(tmp_path, MIRRORS).endpoints(parse(reference))
    assert [(one.url(), one.path) for one in found] == expected
    assert {one.origin for one in found if one.is_mirror} == {str(tmp_path / "config.toml")}


def test_the_settings_of_a_mirror(tmp_path: Path) -> None:
    known, reference = access(tmp_path, MIRRORS), parse("r.test/a")
    mirror, own = known.endpoints(reference)
    assert (mirror.verifies, mirror.authorities) == (False, ("/ca.pem",))
    assert mirror.identities == (("/me.pem", "/me.key"),)
    found = known.login_for(mirror, reference, None)
    assert found == (Credentials("me", "secret"), str(tmp_path / "config.toml"))
    assert known.login_for(own, reference, None) is None
    given = Login(Credentials("you"), "")
    assert known.login_for(mirror, reference, given) == given


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
    assert urls(known.endpoints(parse("r.test/a"))) == [f"https://{expected}"]
    assert bool(known.trap) == is_trap
