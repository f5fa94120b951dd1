"""An upgrade of the packages while the proxy is running: it hands over, and no pull fails."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.node.lab import Lab
from tests.packaging.installing import PACKAGES, files, install, remove
from tests.packaging.roots import Root, debian
from tests.support.slow_pulls import SLOW_S, slow_image
from tests.waiting import wait_until

UNIT = "pycrictl-proxy.service"
STAND_IN = f"""#!/bin/sh
# In place of systemd, which does not run in this root.
case "$*" in
  *is-active*) exit 0 ;;
  "reload {UNIT}")
    echo reloaded >>/run/reloads
    exec $(sed -n 's/^ExecReload=//p' /usr/lib/systemd/system/{UNIT}) ;;
esac
"""


@pytest.mark.parametrize("kind", PACKAGES)
def test_the_proxy_hands_over_to_the_new_version(
    kind: str, released: Path, tmp_path: Path, lab: Lab
) -> None:
    new = next(released.glob(PACKAGES[kind]))
    place = tmp_path / "place"
    place.mkdir()
    listen = f"unix://{lab.folder}/up/cri.sock"
    with Root(place, debian("bookworm")) as root:
        root.run("mkdir", "-p", "/run/systemd/system")
        write(root, "/usr/bin/systemctl", STAND_IN)
        root.run("chmod", "755", "/usr/bin/systemctl")
        before = files(root)
        install(root, older(new, tmp_path))
        settings = f'upstream = "{lab.node.endpoint}"\nlisten = "{listen}"\n'
        write(root, "/etc/pycrictl.toml", settings)
        words = root.command("pycrictl", "proxy", "--config", "/etc/pycrictl.toml")
        proxy = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        try:
            wait_until((lab.folder / "up" / "cri.sock").exists)
            image, reference = slow_image(
                lab, f"upgrade:{kind}", seed=1000 + len(kind) + ord(kind[0]), seconds=SLOW_S
            )
            words = root.command("pycrictl", "-r", listen, "-t", "60s", "pull", reference)
            pull = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            wait_until(lab.node.store.ingests)
            root.run("rm", "-f", "/run/reloads")  # rpm's script cannot detect a first installation
            install(root, new)
            assert root.run("cat", "/run/reloads").stdout == "reloaded\n"
            assert root.run("cat", "/etc/pycrictl.toml").stdout == settings
            assert [pid for pid in programs(root) if pid != proxy.pid]
            lab.registry.limit(None)
            assert pull.communicate(timeout=60)[0].endswith(f"{image.config_digest}\n")
            assert pull.returncode == 0
            assert proxy.wait(120) == 0  # its clients have a minute to move
            assert "containerd" in root.run("pycrictl", "-r", listen, "version").stdout
        finally:
            for pid in programs(root):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            proxy.communicate()
        wait_until(lambda: not programs(root))
        remove(root, kind)
        if kind == "rpm":
            root.run("rm", "-rf", "/var/lib/pycrictl", "/run/pycrictl")
        left = files(root) - before - {"/run/reloads"}
        assert {path for path in left if not path.endswith(".rpmsave")} == set()


def programs(root: Root) -> list[int]:
    answers = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            own = (entry / "ns" / "mnt").readlink() == root.namespace
            if own and (entry / "comm").read_text() == "pycrictl\n":
                answers.append(int(entry.name))
    return answers


def older(package: Path, folder: Path) -> Path:
    if package.suffix == ".rpm":
        return package  # installed again, as by `rpm --reinstall`, which runs all scripts
    unpacked, made = folder / "older", folder / "older.deb"
    subprocess.run(["dpkg-deb", "-R", package, unpacked], check=True)
    control = unpacked / "DEBIAN" / "control"
    text = re.sub(r"^Version: .*$", "Version: 0.0.1-1", control.read_text(), flags=re.MULTILINE)
    control.write_text(text)
    subprocess.run(["dpkg-deb", "-Znone", "-b", unpacked, made], check=True, capture_output=True)
    return made


def write(root: Root, path: str, text: str) -> None:
    subprocess.run(
        root.command("tee", path), input=text, text=True, stdout=subprocess.DEVNULL, check=True
    )
