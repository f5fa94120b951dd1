"""Names, ranges, files and groups of hosts."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from pycrictl.base.errors import ConfigError, PycrictlError
from pycrictl.hosts.connection import hosts_of, ssh_words
from pycrictl.hosts.session import control_socket


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "pycrictl/hosts").mkdir(parents=True)
    return {"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}


@pytest.mark.parametrize(
    ("typed", "host", "words"),
    [
        ("n1", "n1", "-- n1"),
        ("root@n1:2222", "root@n1:2222", "-p 2222 -l root -- n1"),
        ("ssh://a@b.example@n1:22/", "a@b.example@n1:22", "-p 22 -l a@b.example -- n1"),
        ("[fe80::1%eth0]:22", "[fe80::1%eth0]:22", "-p 22 -- fe80::1%eth0"),
    ],
)
def test_a_host(environ: dict[str, str], typed: str, host: str, words: str) -> None:
    assert hosts_of([typed], environ) == [host]
    assert ssh_words(host) == words.split()


@pytest.mark.parametrize(
    "typed",
    ["-oProxyCommand=touch /tmp/x", "n1:0", "n1:99999", "n1;id", "$(id)", "", "n[3-1]", "@"],
)
def test_what_is_no_host_is_refused(environ: dict[str, str], typed: str) -> None:
    with pytest.raises(PycrictlError):
        hosts_of([typed], environ)


@pytest.fixture
def groups(environ: dict[str, str]) -> Path:
    return Path(environ["HOME"], "pycrictl/hosts")


@pytest.mark.parametrize(
    ("typed", "hosts"),
    [
        ("n[08-10],n08 gpu1", ["n08", "n09", "n10", "gpu1"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("@workers, @gpu", ["node01", "node02", "gpu1", "admin@gpu2:22"]),
        ("@{folder}/gpu", ["gpu1", "admin@gpu2:22"]),
    ],
    ids=["list", "ranges", "groups", "file"],
)
def test_several_hosts_are_named_once(
    environ: dict[str, str], groups: Path, typed: str, hosts: list[str]
) -> None:
    (groups / "workers").write_text("# all\nnode[01-02]  # two\n\n")
    (groups / "gpu").write_text("gpu1\nadmin@gpu2:22\n")
    assert hosts_of([typed.format(folder=groups)], environ) == hosts


def test_what_is_no_group_is_one_error(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        hosts_of(["@none"], environ)
    assert caught.value.message == 'cannot read "none": no such file or directory'
    assert str(caught.value.hint).startswith("groups are files in ")


def test_no_two_hosts_share_a_control_socket() -> None:
    """Not even if shorter checksums of their names are equal; ssh adds 17 characters to a path."""
    hosts = ["plumless", "buckeroo"]
    assert zlib.crc32(hosts[0].encode()) == zlib.crc32(hosts[1].encode())
    paths = [control_socket({"XDG_RUNTIME_DIR": f"/run/user/{2**31}"}, host) for host in hosts]
    assert paths[0] != paths[1]
    assert len(Path(paths[0]).name) * 4 >= 128
    assert len(paths[0]) + 17 <= 107
