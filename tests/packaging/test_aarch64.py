"""What is built for aarch64, at work on a real containerd, under qemu-user.

A kernel that does not know qemu cannot start such programs for others: scripts of packages do not
run, nor does the proxy hand over. Nothing here was on a real machine of that kind.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from pycrictl import __version__
from tests.node.lab import Lab
from tests.packaging.building import Layout, built
from tests.packaging.installing import LINK, Installed
from tests.packaging.roots import SUITES, Root, debian
from tests.packaging.test_use import lists, names_itself, pulls, serves

QEMU = "/qemu-aarch64-static"


PROGRAM = "/opt/it/pycrictl"
INSTALL = f"""
mkdir -p "$2/opt/it"
tar -C "$2/opt/it" --strip-components=1 -xJf "$1"
ln -s {PROGRAM} "$2{LINK}"
"""


@contextmanager
def emulated(folder: Path, contents: str) -> Iterator[Root]:
    qemu = shutil.which(Path(QEMU).name)
    assert qemu is not None
    with Root(folder, f"{contents}\ncp {qemu} root{QEMU}") as root:
        yield root


@pytest.mark.parametrize("suite", SUITES)
def test_on_the_node(suite: str, released: Path, tmp_path: Path, lab: Lab) -> None:
    archive = built(released, "*-linux-aarch64.tar.xz")
    with emulated(tmp_path, debian(suite, "arm64")) as root:
        install = ["sh", "-euc", INSTALL, "sh", str(archive), f"{tmp_path}/root"]
        subprocess.run(root.outside(*install), check=True)
        command = partial(root.command, QEMU)
        program = Installed(command, PROGRAM, LINK, "/opt/it/share/man")
        names_itself(program)
        with pulls(program, lab, seed=1100 + 10 * SUITES.index(suite)):
            lists(program, lab)
            serves(program, lab, hands_over=False)


def test_the_image(released: Path, tmp_path: Path) -> None:
    layout = Layout(built(released, "*-image-arm64.tar"), tmp_path / "layout")
    image = layout.read(layout.tagged()[__version__])
    assert layout.read(image["config"])["architecture"] == "arm64"
    layers = [shlex.quote(str(layout.blob(layer))) for layer in image["layers"]]
    unpack = "\n".join(f"tar -C root -xzf {layer}" for layer in layers)
    place = tmp_path / "place"
    place.mkdir()
    with emulated(place, f"mkdir root\n{unpack}") as root:
        version = root.run(QEMU, "/usr/bin/pycrictl", "--version")
        assert (version.stdout, version.stderr) == (f"pycrictl version {__version__}\n", "")
        for name in ("proxy", "agent"):
            shown = root.run(QEMU, "/usr/bin/pycrictl", name, "--help")
            assert shown.stdout.startswith(f"Usage: pycrictl {name} "), shown.stderr


def test_one_tag_is_for_both_machines(released: Path, tmp_path: Path) -> None:
    layout = Layout(built(released, f"*-{__version__}-image.tar"), tmp_path)
    tagged = layout.tagged()
    for tag in (__version__, f"{__version__}-root"):
        images = layout.read(tagged[tag])["manifests"]
        assert [each["platform"]["architecture"] for each in images] == ["amd64", "arm64"]
        for each in images:
            config = layout.read(layout.read(each)["config"])
            assert config["architecture"] == each["platform"]["architecture"]
            listed = tagged[f"{each['digest'].replace(':', '-')}.sbom"]
            assert layout.read(listed)["subject"]["digest"] == each["digest"]
