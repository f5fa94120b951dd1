"""What the displays of pulls say on a terminal, of pulls on a real containerd."""

from __future__ import annotations

import signal

from .lab import MIB, Lab
from .programs import Session

WAIT_S = 60


def test_a_watch_without_end_tells_the_end_of_each_pull(lab: Lab, command: list[str]) -> None:
    session = Session([*command, "image-pull-progress", "--follow"])
    session.wait_for(b"nothing is being pulled")
    for number in (1, 2):
        image = lab.layout.image(
            f"told:{number}", lab.layout.random_layers([2 * MIB], seed=400 + number)
        )
        reference = lab.push(image)
        lab.throttle.limit(MIB // 8)
        pull = lab.node.kubelet.start_pull(reference)
        name = f"127.0.0.1/told@{image.manifest_digest[:19]}"
        session.wait_for(name.encode())
        lab.throttle.limit(None)
        session.wait_for(f"{name}  1 layer  2.0 MiB  in ".encode())
        pull.result(WAIT_S)
        session.wait_for(b"nothing is being pulled")
    session.process.send_signal(signal.SIGINT)
    session.wait_for(b"pycrictl: stopped watching")
    assert session.end() == 130


def test_a_pull_names_its_image_while_the_registry_is_silent(lab: Lab, command: list[str]) -> None:
    image = lab.layout.image("silent:1", lab.layout.random_layers([1 * MIB], seed=410))
    reference = lab.push(image)
    lab.throttle.stall("manifests/")
    session = Session([*command, "pull", reference])
    session.wait_for(f"{reference}  waiting for the registry".encode())
    lab.throttle.limit(MIB // 2)
    lab.throttle.heal()
    session.wait_for(f"{reference}  1 layer  1.0 MiB".encode())
    session.wait_for(f"Image is up to date for {image.config_digest}".encode())
    assert session.end() == 0
