"""Names, ranges, files and groups of hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pycrictl.base.errors import ConfigError, PycrictlError
from pycrictl.hosts.names import Host, hosts_of, known


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "pycrictl/hosts").mkdir(parents=True)
    return {"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}


def labels(environ: dict[str, str], *words: str) -> list[str]:
    return [host.label for host in hosts_of(words, environ)]


@pytest.mark.parametrize(
    ("typed", "host"),
    [
        ("n1", Host("n1", "", "n1", "")),
        ("root@n1:2222", Host("root@n1:2222", "root", "n1", "2222")),
        ("ssh://admin@n1:22/", Host("admin@n1:22", "admin", "n1", "22")),
        ("[fe80::1%eth0]:22", Host("[fe80::1%eth0]:22", "", "fe80::1%eth0", "22")),
    ],
)
def test_a_host(environ: dict[str, str], typed: str, host: Host) -> None:
    assert hosts_of([typed], environ) == [host]


@pytest.mark.parametrize(
    "typed",
    ["-oProxyCommand=touch /tmp/x", "n1:0", "n1:99999", "n1;id", "$(id)", "", "n[3-1]", "@"],
)
def test_what_is_no_host_is_refused(environ: dict[str, str], typed: str) -> None:
    with pytest.raises(PycrictlError):
        hosts_of([typed], environ)


def test_ranges_lists_and_repetitions_name_each_host_once(environ: dict[str, str]) -> None:
    assert labels(environ, "n[08-10],n08", "gpu1") == ["n08", "n09", "n10", "gpu1"]
    assert labels(environ, "r[1-2]n[1-2]") == ["r1n1", "r1n2", "r2n1", "r2n2"]


def test_a_file_has_a_host_per_line_and_comments(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "list").write_text("# all\nn1\nn[2-3] # two\n\n@" + str(tmp_path / "other") + "\n")
    (tmp_path / "other").write_text("n4")
    assert labels(environ, f"@{tmp_path}/list") == ["n1", "n2", "n3", "n4"]


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    return tmp_path / "pycrictl/hosts"


def test_groups_are_files_and_may_name_groups(environ: dict[str, str], groups: Path) -> None:
    (groups / "workers").write_text("node[01-02]  # two\n")
    (groups / "gpu").write_text("gpu1\nadmin@gpu2:22\n")
    (groups / "all").write_text("@workers, @gpu\n")
    assert labels(environ, "@all") == ["node01", "node02", "gpu1", "admin@gpu2:22"]


def test_groups_that_name_each_other_end_in_an_error(environ: dict[str, str], groups: Path) -> None:
    (groups / "a").write_text("@b")
    (groups / "b").write_text("@a")
    with pytest.raises(ConfigError, match="name each other"):
        labels(environ, "@a")


def test_an_unknown_group_is_named(environ: dict[str, str], groups: Path) -> None:
    with pytest.raises(ConfigError, match='no group or file "worker"') as caught:
        labels(environ, "@worker")
    assert caught.value.hint == f"groups are files in {groups}"


def test_tab_offers_groups_and_hosts_of_the_ssh_configuration(
    environ: dict[str, str], tmp_path: Path, groups: Path
) -> None:
    (groups / "gpu").write_text("gpu1")
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text("Host n1 n2 *.example !n3\n  User root\nHost *\n")
    assert known(environ) == ["@gpu", "n1", "n2"]
