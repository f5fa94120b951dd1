"""The contents of the packages, and where they are installed."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from pycrictl import __version__
from pycrictl.cli.commands.shell import FILES
from tests.packaging.building import PYTHON, ROOT, build, unpack
from tests.proxy.settings import settings_from

PAGES = sorted(path.name for path in (ROOT / "man").glob("*.[157]"))
DEBIAN = ROOT / "packaging" / "debian"
PLUGINS = ("image_pull_progress", "container_cp", "why")


def test_the_sdist_builds_the_same(released: Path, tmp_path: Path) -> None:
    """A difference means that a build depends on its folder, time zone, locale or hash seed."""
    (wheel,) = released.glob("*.whl")
    name = "-".join(wheel.name.split("-")[:2])
    sources = tmp_path / "sources" / name
    unpack(released / f"{name}.tar.gz", sources.parent)
    time_s = int((sources / "Makefile").stat().st_mtime)
    environ = {"TZ": "Pacific/Apia", "LC_ALL": "C", "PYTHONHASHSEED": "7"}
    script = sources / "packaging" / "dist.py"
    environ["SOURCE_DATE_EPOCH"] = str(time_s)
    build(script, "--output", tmp_path, "wheel", python=PYTHON, **environ)
    again = [*tmp_path.glob("pycrictl*")]
    assert len(again) == 2
    assert [
        file for file in again if (released / file.name).read_bytes() != file.read_bytes()
    ] == []


def test_the_sdist_has_every_document() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = set(project["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"])
    assert {path.name for path in ROOT.glob("*.md")} - {
        "README.md"
    } <= included  # hatchling adds it


def test_the_wheel_has_man_pages_and_completions(dist: Path) -> None:
    with zipfile.ZipFile(dist / f"pycrictl-{__version__}-py3-none-any.whl") as wheel:
        own = set(wheel.namelist())
    assert {
        *(f"pycrictl/completions/{name}" for name in FILES.values()),
        "pycrictl/cluster/agent/api/discovery.json",
        "pycrictl/hosts/first_contact.sh",
        *(f"pycrictl/cli/commands/schemas/{name}.json" for name in ("pod", "container")),
    } <= own
    assert not [name for name in own if name.startswith("tools/")]
    start = f"pycrictl-{__version__}.data/data/share/"
    names = {name.removeprefix(start) for name in own if name.startswith(start)}
    pages = {f"man/man{name[-1]}/{name}" for name in PAGES}
    assert len(pages) > 40
    assert names == pages | {
        "bash-completion/completions/pycrictl",
        "zsh/site-functions/_pycrictl",
        "fish/vendor_completions.d/pycrictl.fish",
    }


def test_the_debian_package(released: Path, tmp_path: Path) -> None:
    (package,) = released.glob("*_amd64.deb")
    subprocess.run(["dpkg-deb", "-R", package, tmp_path], check=True)
    files = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(files.stdout)) as entries:
        assert len({entry.mtime for entry in entries}) == 1
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    pages = {f"usr/share/man/man{name[-1]}/{name}.gz" for name in PAGES}
    documents = {"copyright", "changelog.gz", "changelog.Debian.gz", "README.Debian"}
    examples = (
        "pycrictl.rules.yaml", "pycrictl-agent.rules.yaml",
        "pycrictl-proxy.json", "pycrictl-agent.json",
    )  # fmt: skip
    documents |= {f"examples/{name}" for name in examples}
    wanted = pages | {f"usr/share/doc/pycrictl/{name}" for name in documents}
    wanted |= {
        "usr/bin/pycrictl", "etc/pycrictl.toml",
        "usr/lib/systemd/system/pycrictl-proxy.service",
        "usr/share/bash-completion/completions/pycrictl",
        "usr/share/zsh/vendor-completions/_pycrictl",
        "usr/share/fish/vendor_completions.d/pycrictl.fish",
        *(f"usr/bin/kubectl-{plugin}" for plugin in PLUGINS),
    }  # fmt: skip
    rest = {name for name in names - wanted if not name.startswith("DEBIAN/")}
    assert wanted <= names
    own = ("usr/lib/pycrictl/", "usr/share/doc/pycrictl/licenses/", "usr/share/lintian/")
    assert [name for name in rest if not name.startswith(own)] == []
    sums = subprocess.run(["md5sum", "--quiet", "-c", "DEBIAN/md5sums"], cwd=tmp_path, check=False)
    assert sums.returncode == 0
    unit = (tmp_path / "usr/lib/systemd/system/pycrictl-proxy.service").read_text()
    assert "\nExecStart=/usr/bin/pycrictl proxy " in unit
    assert "/usr/local" not in unit
    licenses = {name.removeprefix(own[1]).split("/")[0] for name in rest if name.startswith(own[1])}
    assert licenses >= {"Python.txt", "OpenSSL.txt", "zlib.txt", "grpcio", "protobuf", "typer"}


def test_lintian_finds_no_errors(released: Path) -> None:
    packages = map(str, released.glob("*.deb"))
    command = ["lintian", "--allow-root", "--fail-on", "error", *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_conffile_has_keys_of_the_proxy_only(tmp_path: Path) -> None:
    text = (ROOT / "packaging" / "pycrictl.toml").read_text()
    assert tomllib.loads(text) == {}
    path = tmp_path / "pycrictl.toml"
    kubelet = tmp_path / "kubelet.yaml"
    kubelet.write_text("kind: KubeletConfiguration\n")
    text = text.replace("/var/lib/kubelet/config.yaml", str(kubelet))
    path.write_text(re.sub(r"^#(?=[a-z-]+ = )", "", text, flags=re.MULTILINE))
    assert set(tomllib.loads(path.read_text())) >= {"upstream", "max-parallel-image-pulls"}
    given = settings_from(f"--config={path}")
    assert given.upstream == "/run/containerd/containerd.sock"


@pytest.mark.parametrize("script", ["postinst", "prerm", "postrm"])
def test_the_scripts_of_the_package_parse(script: str) -> None:
    assert subprocess.run(["sh", "-n", DEBIAN / script], check=False).returncode == 0


def test_what_is_bundled_is_what_is_asked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = dict(
        line.removesuffix(" \\").split("==")
        for name in ("bundled.txt", "image/modules.txt")
        for line in (ROOT / "packaging" / name).read_text().splitlines()
        if "==" in line
    )
    wanted = [*project["dependencies"], *project["optional-dependencies"]["agent"]]
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(Version(pins[requirement.name]))
