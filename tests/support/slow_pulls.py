"""Pulls on the throwaway node that are slow until they have been seen."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile

from tests.e2e.node.images import Image
from tests.e2e.node.lab import MIB, Lab
from tests.waiting import wait_until

WAIT_S = 60


SLOW_S = 60
"""How long a slow pull would take; tests speed it up once they have seen its progress."""


_A_LAYER = re.compile(r'"layer": "sha256:|downloading')


def program(lab: Lab, *words: str) -> list[str]:
    return [sys.executable, "-m", "pycrictl", "-t", "20s", "-r", lab.node.endpoint, *words]


def slow_image(lab: Lab, name: str, *, seed: int, seconds: float) -> tuple[Image, str]:
    image = lab.layout.image(name, lab.layout.random_layers([2 * MIB] * 4, seed=seed))
    reference = lab.push(image)
    lab.registry.limit(image.layers_bytes / seconds)
    return image, reference


def run_slowly(lab: Lab, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the program to its end; the network is slow until the program has shown a layer."""
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        files = (stdout, stderr)

        def texts() -> list[str]:
            return [os.pread(file.fileno(), MIB, 0).decode() for file in files]

        with subprocess.Popen(program(lab, *words), stdout=stdout, stderr=stderr) as process:
            wait_until(lambda: _A_LAYER.search("".join(texts())) or process.poll() is not None)
            lab.registry.limit(None)
            code = process.wait(WAIT_S)
        return subprocess.CompletedProcess(process.args, code, *texts())
