"""Commands on a real containerd that the recordings (``test_replay``) do not cover."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from google.protobuf import json_format

from tests.cli.run import start
from tests.e2e.node.forked import Program
from tests.e2e.node.lab import MIB, Lab
from tests.e2e.node.programs import Session
from tests.support.slow_pulls import SLOW_S, WAIT_S, run_slowly, slow_image
from tests.waiting import wait_until


def test_pull_shows_its_own_image_by_its_name(lab: Lab) -> None:
    layers = lab.layout.random_layers([2 * MIB] * 4, seed=22)
    image = lab.layout.multi_platform_image("mine:1", layers)
    reference = lab.push(image)
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
    process = start("-r", lab.node.endpoint, "pull", reference)
    wait_until(lab.node.store.ingests)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=WAIT_S)
    assert (process.returncode, stdout) == (130, "")
    assert stderr == f'pycrictl: cancelled the pull of "{reference}"\n'
    wait_until(lambda: not lab.node.store.leases())


def test_a_watch_without_end_tells_the_end_of_each_pull(lab: Lab, command: list[str]) -> None:
    session = Session([*command, "image-pull-progress", "--follow"])
    session.wait_for(b"nothing is being pulled")
    for number in (1, 2):
        image = lab.layout.image(
            f"told:{number}", lab.layout.random_layers([2 * MIB], seed=400 + number)
        )
        reference = lab.push(image)
        lab.registry.limit(MIB // 8)
        pull = lab.node.kubelet.start_pull(reference)
        name = f"127.0.0.1/told@{image.manifest_digest[:19]}"
        session.wait_for(name.encode())
        lab.registry.limit(None)
        session.wait_for(f"{name}  1 layer  2.0 MiB  in ".encode())
        pull.result(WAIT_S)
        session.wait_for(b"nothing is being pulled")
    session.process.send_signal(signal.SIGINT)
    session.wait_for(b"pycrictl: stopped watching")
    assert session.end() == 130


def test_a_pull_names_its_image_while_the_registry_is_silent(lab: Lab, command: list[str]) -> None:
    image = lab.layout.image("silent:1", lab.layout.random_layers([1 * MIB], seed=410))
    reference = lab.push(image)
    lab.registry.stall("manifests/")
    session = Session([*command, "pull", reference])
    session.wait_for(f"{reference}  waiting for the registry".encode())
    lab.registry.limit(MIB // 2)
    lab.registry.heal()
    session.wait_for(f"{reference}  1 layer  1.0 MiB".encode())
    session.wait_for(f"Image is up to date for {image.config_digest}".encode())
    assert session.end() == 0


@pytest.mark.parametrize(
    "fields", [{"command": ["/nonexistent"]}, {"image": {"image": "127.0.0.1:1/x:1"}}]
)
def test_a_failed_run_leaves_nothing(
    lab: Lab, crictl: Program, tmp_path: Path, fields: dict[str, object]
) -> None:
    kubelet, pod, container = lab.node.kubelet, tmp_path / "pod.json", tmp_path / "bad.json"
    pod.write_text(json_format.MessageToJson(kubelet.pod_config("web")))
    image = {"image": lab.reference(lab.busybox)}
    document = {"metadata": {"name": "bad"}, "image": image, "linux": {}, **fields}
    container.write_text(json.dumps(document))
    run = crictl.run("run", str(container), str(pod))
    assert (run.status, run.stdout) == (1, b"")
    assert run.stderr.endswith(" was removed again\n")
    assert list(kubelet.ask("ListPodSandbox").items) == []
