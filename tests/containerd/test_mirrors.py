"""Where containerd looks for a registry's images."""

from __future__ import annotations

from pathlib import Path

from pycrictl.containerd.mirrors import Site, sites_of

HOSTS = """\
server = "https://registry-1.docker.io"

[host."https://mirror.example:5000"]
  capabilities = ["pull", "resolve"]
  ca = "ca.pem"

[host."http://10.0.0.9/v2"]
  skip_verify = true
"""


def configured(folder: Path, name: str, text: str = HOSTS) -> Path:
    certs = folder / "certs.d" / name
    certs.mkdir(parents=True)
    (certs / "hosts.toml").write_text(text)
    config = folder / "config.toml"
    config.write_text(
        f'version = 2\n[plugins."io.containerd.grpc.v1.cri".registry]\n'
        f'config_path = "{folder / "certs.d"}"\n'
    )
    return config


def test_mirrors_come_first(tmp_path: Path) -> None:
    config = configured(tmp_path, "docker.io")
    assert sites_of("docker.io", config) == [
        Site(
            "https://mirror.example:5000",
            is_mirror=True,
            ca=str(tmp_path / "certs.d/docker.io/ca.pem"),
        ),
        Site("http://10.0.0.9", is_mirror=True, verifies=False),
        Site("https://registry-1.docker.io"),
    ]


def test_the_default_is_for_every_registry(tmp_path: Path) -> None:
    config = configured(tmp_path, "_default", '[host."https://m"]\n')
    assert sites_of("reg.example:5000", config) == [
        Site("https://m", is_mirror=True),
        Site("https://reg.example:5000"),
    ]


def test_without_a_folder_or_with_a_bad_file_the_registry_itself_is_asked(tmp_path: Path) -> None:
    assert sites_of("127.0.0.1:5000", tmp_path / "none") == [Site("http://127.0.0.1:5000")]
    config = configured(tmp_path, "reg.example", "server = [")
    assert sites_of("reg.example", config) == [Site("https://reg.example")]
