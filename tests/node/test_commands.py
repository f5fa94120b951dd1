"""The commands of images on a real containerd, run as a user runs them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import grpc

from pycrictl._proto import cri_pb2
from tests.node.images import Image
from tests.node.lab import MIB, Lab
from tests.waiting import wait_until

WAIT_S = 60
SLOW_S = 60
"""How long a pull lasts that ends as soon as somebody has seen it."""

WATCH = ("image-pull-progress", "--interval", "0.2")
_A_LAYER = re.compile(r'"layer": "sha256:|downloading')


def program(lab: Lab, *words: str) -> list[str]:
    return [sys.executable, "-m", "pycrictl", "-t", "20s", "-r", lab.node.endpoint, *words]


def run(lab: Lab, *words: str) -> subprocess.CompletedProcess[str]:
    command = program(lab, *words)
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)


def start(lab: Lab, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        program(lab, *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def slow_image(lab: Lab, name: str, *, seed: int, seconds: float) -> tuple[Image, str]:
    image = lab.layout.image(name, lab.layout.random_layers([2 * MIB] * 4, seed=seed))
    reference = lab.push(image)
    lab.throttle.limit(image.layers_bytes / seconds)
    return image, reference


def slow_pull_and_watch(
    lab: Lab, name: str, *, seed: int
) -> tuple[grpc.Future[cri_pb2.PullImageResponse], subprocess.Popen[str]]:
    """A pull that lasts, and the program that watches it and has shown something of it."""
    _, reference = slow_image(lab, name, seed=seed, seconds=SLOW_S)
    pull = lab.node.kubelet.start_pull(reference)
    wait_until(lab.node.store.ingests)
    process = start(lab, "image-pull-progress", "--progress", "json")
    assert process.stdout is not None
    assert process.stdout.readline()
    return pull, process


def run_slowly(
    lab: Lab, *words: str, inside: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Runs the program to its end; the network is slow until it has shown a layer.

    `inside` is a command that runs another.
    """
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        files = (stdout, stderr)

        def texts() -> list[str]:
            return [os.pread(file.fileno(), MIB, 0).decode() for file in files]

        command = [*inside, *program(lab, *words)]
        with subprocess.Popen(command, stdout=stdout, stderr=stderr) as process:
            wait_until(lambda: _A_LAYER.search("".join(texts())) or process.poll() is not None)
            lab.throttle.limit(None)
            code = process.wait(WAIT_S)
        return subprocess.CompletedProcess(process.args, code, *texts())


def last_records(stdout: str) -> dict[str, dict[str, Any]]:
    return {entry["layer"]: entry for entry in map(json.loads, stdout.splitlines())}


def test_progress_of_a_pull_that_kubelet_started(lab: Lab) -> None:
    image, reference = slow_image(lab, "seen:1", seed=21, seconds=SLOW_S)
    pod = lab.node.kubelet.run_pod("web")
    pull = lab.node.kubelet.start_pull(reference, pod)
    watched = run_slowly(lab, *WATCH, "web", "--progress", "json")
    assert pull.result(WAIT_S) is not None
    assert watched.returncode == 0
    assert "does not say which pod" in watched.stderr
    records = last_records(watched.stdout)
    sizes = {layer.digest: layer.size_bytes for layer in image.layers}
    assert {digest: entry["progress"] for digest, entry in records.items()} == sizes
    assert {digest: entry["total"] for digest, entry in records.items()} == sizes
    assert {entry["phase"] for entry in records.values()} <= {"done", "present"}


def test_a_container_stands_for_its_image(lab: Lab) -> None:
    image, reference = slow_image(lab, "restarted:1", seed=31, seconds=SLOW_S)
    _, other_reference = slow_image(lab, "unrelated:1", seed=32, seconds=SLOW_S)
    lab.throttle.limit(None)
    kubelet = lab.node.kubelet
    pod = kubelet.run_pod("web")
    kubelet.pull(lab.reference(lab.busybox))
    kubelet.create_container(pod, lab.reference(lab.busybox), ["sleep", "100"], name="main")
    lab.throttle.limit(image.layers_bytes / SLOW_S)
    pulls = [kubelet.start_pull(reference), kubelet.start_pull(other_reference)]
    wait_until(lab.node.store.ingests)
    words = [*WATCH, "web", "-c", "main", "--progress", "json"]
    with start(lab, *words) as watching:
        chosen = run_slowly(lab, *words, "--image", reference)
        stdout, stderr = watching.communicate(timeout=WAIT_S)
    assert (watching.returncode, stdout) == (0, "")
    assert f'showing pulls of "{lab.reference(lab.busybox)}"' in stderr
    assert stderr.endswith('no image is being pulled for "web"\n')
    assert chosen.returncode == 0
    names = {entry["image"] for entry in map(json.loads, chosen.stdout.splitlines())}
    assert names == {f"127.0.0.1/restarted@{image.manifest_digest[:19]}"}
    for pull in pulls:
        pull.result(WAIT_S)


def test_pull_shows_its_own_image_by_its_name(lab: Lab) -> None:
    image, reference = slow_image(lab, "mine:1", seed=22, seconds=SLOW_S)
    _, other_reference = slow_image(lab, "other:1", seed=23, seconds=SLOW_S)
    other_pull = lab.node.kubelet.start_pull(other_reference)
    wait_until(lab.node.store.ingests)
    pulled = run_slowly(lab, "pull", "--progress", "json", reference)
    other_pull.result(WAIT_S)
    assert pulled.returncode == 0
    assert pulled.stdout == f"Image is up to date for {image.config_digest}\n"
    records = [json.loads(line) for line in pulled.stderr.splitlines()]
    assert {entry["image"] for entry in records} == {reference}
    final = {entry["layer"]: entry["progress"] for entry in records}
    assert final == {layer.digest: layer.size_bytes for layer in image.layers}


def test_ctrl_c_cancels_a_pull_of_ones_own(lab: Lab) -> None:
    _, reference = slow_image(lab, "cancelled:1", seed=25, seconds=SLOW_S)
    process = start(lab, "pull", reference)
    wait_until(lab.node.store.ingests)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=WAIT_S)
    assert (process.returncode, stdout) == (130, "")
    assert stderr == f'pycrictl: cancelled the pull of "{reference}"\n'
    wait_until(lambda: not lab.node.store.leases())


def test_ctrl_c_ends_a_watch_and_not_the_pull(lab: Lab) -> None:
    pull, process = slow_pull_and_watch(lab, "going-on:1", seed=26)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert stderr.endswith("pycrictl: stopped watching; the pulls go on\n")
    assert not pull.done()
    lab.throttle.limit(None)
    pull.result(WAIT_S)


def test_a_broken_pull_is_a_failure_of_the_watch(lab: Lab) -> None:
    image, reference = slow_image(lab, "broken:1", seed=28, seconds=SLOW_S)
    lab.throttle.cut(f"blobs/{image.layers[1].digest}", after_bytes=MIB)
    pull = lab.node.kubelet.start_pull(reference)
    wait_until(lab.node.store.ingests)
    watched = run_slowly(lab, *WATCH)
    assert pull.exception(WAIT_S) is not None
    assert watched.returncode == 1
    last = watched.stderr.splitlines()[-1]
    assert last.startswith('pycrictl: the pull of "127.0.0.1/broken@sha256:')
    assert "failed: the pull ended before all layers were there (" in last


def test_pulls_that_the_registry_refuses(lab: Lab) -> None:
    _, reference = slow_image(lab, "refused:1", seed=29, seconds=0.5)
    said = {401: "refuses access", 404: "does not have", 500: "500"}
    for status, words in said.items():
        lab.throttle.answer("/manifests/", status)
        pulled = run(lab, "pull", reference)
        assert (pulled.returncode, pulled.stdout) == (1, "")
        (line, *hints) = pulled.stderr.splitlines()
        assert line.startswith(f'pycrictl: pulling "{reference}": ')
        assert words in line
        assert all(hint.startswith("hint: ") for hint in hints)
        lab.throttle.heal()
