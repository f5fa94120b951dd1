"""CRI-O's registries, from its files below a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from pycrictl.pulls.reference import parse
from pycrictl.pulls.registries.mirrors import CrioAccess, Endpoint

CONF = """
unqualified-search-registries = ["first.test", "docker.io"]
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
prefix = "*.wild.test"
mirror-by-digest-only = true
[[registry.mirror]]
location = "w.test"
"""
DIGEST = f"@sha256:{'1' * 64}"


def write(root: Path, path: str, content: str) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


def urls(access: CrioAccess, reference: str) -> list[str]:
    return [f"{one.url()} {one.repository}" for one in access.endpoints(parse(reference))]


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        (
            f"a.test/team/x{DIGEST}",
            [
                "https://m.test/proxy proxy/x",
                "https://digests.test x",
                "https://b.test/moved moved/x",
            ],
        ),
        (
            "a.test/team/x:1",
            ["https://m.test/proxy proxy/x", "https://tags.test x", "https://b.test/moved moved/x"],
        ),
        ("a.test/teams/x:1", ["https://a.test teams/x"]),
        ("x:1", ["https://registry-1.docker.io library/x"]),
        ("no.test/x:1", []),
        ("r.wild.test:5000/x:1", ["https://r.wild.test:5000 x"]),
        (f"r.wild.test/x{DIGEST}", ["https://w.test x", "https://r.wild.test x"]),
    ],
)
def test_the_servers_of_an_image(tmp_path: Path, reference: str, found: list[str]) -> None:
    write(tmp_path, "/etc/containers/registries.conf", CONF)
    assert urls(CrioAccess({}, {}, str(tmp_path)), reference) == found


def test_what_a_table_says_of_its_server(tmp_path: Path) -> None:
    write(tmp_path, "/etc/containers/registries.conf", CONF)
    for name in ("m.test/a.crt", "m.test/me.cert", "m.test/me.key"):
        write(tmp_path, f"/etc/containers/certs.d/{name}", "")
    folder = tmp_path / "etc/containers/certs.d/m.test"
    mirror, *_ = CrioAccess({}, {}, str(tmp_path)).endpoints(parse("a.test/team/x"))
    assert mirror == Endpoint(
        "m.test",
        repository="proxy/x",
        prefix="proxy",
        schemes=("https", "http"),
        is_mirror=True,
        verifies=False,
        authorities=(str(folder / "a.crt"),),
        identities=((str(folder / "me.cert"), str(folder / "me.key")),),
        origin="/etc/containers/registries.conf",
    )


@pytest.mark.parametrize(
    ("flags", "environ", "file", "expected"),
    [
        ({}, {}, "/etc/containers/registries.conf", True),
        ({}, {}, "/etc/containers/registries.conf.d/a/50.conf", True),
        ({"registries-conf": "/x.conf"}, {}, "/x.conf", True),
        ({"registries-conf": "/x.conf"}, {}, "/etc/containers/registries.conf", False),
        ({}, {"CONTAINER_REGISTRIES_CONF": "/y.conf"}, "/y.conf", True),
        ({"registries-conf-dir": "/d"}, {}, "/d/1.conf", True),
        ({}, {"CONTAINER_REGISTRIES_CONF_DIR": "/d"}, "/d/1.conf", True),
        ({}, {}, "/etc/containers/registries.conf.d/readme.txt", False),
    ],
)
def test_the_files_that_crio_reads(
    tmp_path: Path, flags: dict[str, str], environ: dict[str, str], file: str, expected: bool
) -> None:
    write(tmp_path, file, '[[registry]]\nprefix = "a.test"\nlocation = "b.test"\n')
    access = CrioAccess(flags, environ, str(tmp_path))
    assert urls(access, "a.test/x") == [f"https://{'b' if expected else 'a'}.test x"]


def test_a_later_file_overrides_an_earlier_one_and_a_bad_one_changes_nothing(
    tmp_path: Path,
) -> None:
    folder = "/etc/containers/registries.conf.d"
    write(tmp_path, f"{folder}/1.conf", '[[registry]]\nprefix = "a.test"\nlocation = "b.test"\n')
    write(tmp_path, f"{folder}/2.conf", '[[registry]]\nprefix = "a.test"\nlocation = "c.test"\n')
    write(tmp_path, f"{folder}/3.conf", "[[")
    assert urls(CrioAccess({}, {}, str(tmp_path)), "a.test/x") == ["https://c.test x"]


def test_links_are_those_of_the_node(tmp_path: Path) -> None:
    write(tmp_path, "/nix/own.conf", '[[registry]]\nprefix = "a.test"\nlocation = "b.test"\n')
    (tmp_path / "etc/containers").mkdir(parents=True)
    (tmp_path / "etc/containers/registries.conf").symlink_to("/nix/own.conf")
    assert urls(CrioAccess({}, {}, str(tmp_path)), "a.test/x") == ["https://b.test x"]


def test_short_names(tmp_path: Path) -> None:
    access = CrioAccess({}, {}, str(tmp_path))
    assert access.meanings("x:1") == [parse("docker.io/library/x:1")]
    write(tmp_path, "/etc/containers/registries.conf", CONF)
    assert access.meanings("x:1") == [parse("first.test/x:1"), parse("docker.io/x:1")]
    assert access.meanings("team/x") == [parse("first.test/team/x"), parse("docker.io/team/x")]
    assert access.meanings("docker.io/x:1") == [parse("docker.io/x:1")]
    assert access.meanings("a.test/x:1") == [parse("a.test/x:1")]
