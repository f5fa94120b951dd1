"""Each built package, installed in an empty place and used with a real containerd."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from pycrictl import __version__
from pycrictl.base.processes import is_running
from pycrictl.cli.commands.shell import FILES
from tests.e2e.node.lab import Lab
from tests.packaging import installing
from tests.packaging.building import ROOT
from tests.packaging.installing import Installed
from tests.packaging.roots import SUITES
from tests.support.slow_pulls import SLOW_S, WAIT_S, slow_image
from tests.waiting import wait_until

Place = Callable[[Path, Path], AbstractContextManager[Installed]]
Package = Callable[[Path, Path, str], AbstractContextManager[Installed]]
PLACES: list[Place] = [installing.wheel, installing.pyz]
PACKAGES: list[Package] = [
    installing.directory,
    installing.single,
    installing.deb,
    installing.rpm,
    installing.aarch64,
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_on_the_node(place: Place, dist: Path, tmp_path: Path, lab: Lab) -> None:
    with place(dist, tmp_path) as program:
        does_all(program, lab, seed=700 + 10 * PLACES.index(place))


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_standalone_on_the_node(
    package: Package, suite: str, released: Path, tmp_path: Path, lab: Lab
) -> None:
    number = PACKAGES.index(package) * len(SUITES) + SUITES.index(suite)
    with package(released, tmp_path, suite) as program:
        is_whole = package is not installing.aarch64
        does_all(program, lab, seed=800 + 10 * number, is_whole=is_whole)


def does_all(program: Installed, lab: Lab, *, seed: int, is_whole: bool = True) -> None:
    names_itself(program)
    with pulls(program, lab, seed=seed):
        lists(program, lab)
        if is_whole:
            reaches_into_a_container(program, lab)
        serves(program, lab, hands_over=is_whole)


def names_itself(program: Installed) -> None:
    assert program.run("--version").stdout == f"pycrictl version {__version__}\n"
    assert program.run("ps", "--help").stdout.startswith("Usage: pycrictl ps ")
    as_crictl = program.run("ps", "--help", program=program.link)
    assert as_crictl.stdout.startswith("NAME:\n   crictl ps - ")
    script = program.run("completion", "bash")
    assert (script.returncode, script.stderr) == (0, "")
    assert script.stdout == (ROOT / "completions" / FILES["bash"]).read_text()
    if program.pages:
        listed = program.run(f"{program.pages}/man1", program="/bin/ls").stdout.split()
        assert {name.removesuffix(".gz") for name in listed} >= {"pycrictl.1", "pycrictl-ps.1"}


def lists(program: Installed, lab: Lab) -> None:
    at = ("-r", lab.node.endpoint)
    version = program.run(*at, "version")
    assert (version.returncode, version.stderr) == (0, "")
    assert "RuntimeName:  containerd\n" in version.stdout
    images = program.run(*at, "images", "-o", "yaml")
    assert (images.returncode, images.stderr) == (0, "")
    assert lab.reference(lab.pause) in images.stdout


@contextmanager
def pulls(program: Installed, lab: Lab, *, seed: int) -> Iterator[None]:
    """Start a pull and a watch of it; both must end by themselves after the block."""
    at = ("-r", lab.node.endpoint)
    # The node keeps layers for a while, so each program gets layers of its own.
    image, reference = slow_image(lab, f"packaged:{seed}", seed=seed, seconds=SLOW_S)
    pull = program.start(*at, "pull", "--progress", "json", reference)
    wait_until(lab.node.store.ingests)
    watch = program.start(*at, "image-pull-progress", "--progress", "bar")
    _wait_for_output(pull)
    _wait_for_line(watch, "packaged")
    lab.registry.limit(None)
    yield
    stdout, stderr = pull.communicate(timeout=WAIT_S)
    _, watched = watch.communicate(timeout=WAIT_S)
    assert (watch.returncode, pull.returncode) == (0, 0), (watched, stderr)
    assert stdout == f"Image is up to date for {image.config_digest}\n"
    progress = {entry["layer"]: entry["progress"] for entry in map(json.loads, stderr.splitlines())}
    assert progress == {layer.digest: layer.size_bytes for layer in image.layers}


def reaches_into_a_container(program: Installed, lab: Lab) -> None:
    at = ("-r", lab.node.endpoint)
    kubelet = lab.node.kubelet
    pod = kubelet.run_pod("packaged")
    reference = lab.reference(lab.busybox)
    kubelet.pull(reference)
    container = kubelet.create_container(pod, reference, ["sleep", "100"], name="main")
    kubelet.start_container(container)
    assert program.run(*at, "ps", "-q").stdout == f"{container}\n"
    script = "echo out; echo err >&2; exit 7"
    done = program.run(*at, "exec", "-r", "websocket", container, "sh", "-c", script)
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert done.stderr.startswith("err\n")
    copied = lab.folder / "copied"
    copy = program.run(*at, "cp", f"{container}:/bin/busybox", str(copied))
    assert copy.returncode == 0, copy.stderr
    assert copied.read_bytes() == Path("/bin/busybox").read_bytes()
    copied.unlink()


def serves(program: Installed, lab: Lab, *, hands_over: bool) -> None:
    folder = lab.folder / "px"
    settings = lab.folder / "proxy.toml"
    listen = f"unix://{folder}/cri.sock"
    settings.write_text(f'upstream = "{lab.node.endpoint}"\nlisten = "{listen}"\n')
    admin = f"unix://{folder}/admin.sock"
    words = ("proxy", "--config", str(settings), "--admin-socket", admin)
    proxy = program.start(*words)
    later = 0
    try:
        _wait_for_line(proxy, " ready ")
        version = program.run("-r", listen, "version")
        assert "RuntimeName:  containerd\n" in version.stdout
        status = program.run("pull-limiter", "status", "--admin-socket", admin)
        assert status.returncode == 0, status.stderr
        if not hands_over:
            return
        reloaded = program.run(*words, "--reload")
        match = re.search(r"process (\d+) now serves", reloaded.stderr)
        assert match is not None, reloaded.stderr
        later = int(match[1])
        proxy.kill()  # it would give its clients a minute to move
        assert program.run("-r", listen, "version").stdout == version.stdout
        os.kill(later, signal.SIGTERM)
        wait_until(lambda: not is_running(later))
    finally:
        if later and is_running(later):
            os.kill(later, signal.SIGKILL)
        proxy.kill()
        proxy.communicate()
        settings.unlink()


def _wait_for_output(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    assert select.select([process.stderr], [], [], WAIT_S)[0], "waited in vain"


def _wait_for_line(process: subprocess.Popen[str], wanted: str) -> None:
    assert process.stderr is not None
    reported = b""
    while wanted.encode() not in reported:
        _wait_for_output(process)
        piece = os.read(process.stderr.fileno(), 65536)  # the stream would read ahead
        assert piece, reported
        reported += piece
