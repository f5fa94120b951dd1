"""Shows `pycrictl image-pull-progress` on a real containerd that pulls from a slow registry."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import grpc

from .images import Image
from .lab import MIB, Lab

LAYER_SIZES_BYTES: Final = tuple(size * MIB for size in (5, 18, 9, 12, 4, 8))
PULL_S: Final = 22
COMMAND_TIMEOUT_S: Final = 90


def main() -> int:
    """Runs the demo; 0 when the pull, the command and its figures were right."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return _fail("the throwaway node needs Linux and root")
    _say("Starting a throwaway node: containerd, a registry, and a slow network between them …")
    try:
        with Lab() as lab:
            layers = lab.layout.random_layers(LAYER_SIZES_BYTES, seed=1)
            image = lab.layout.image("shop/web:1.4", layers)
            lab.push(image)
            return _show_pull(lab, image)
    except KeyboardInterrupt:
        _say("\nInterrupted; the node is gone.")
        return 130
    except grpc.RpcError as exc:
        return _fail(f"the node says: {exc}")
    except subprocess.TimeoutExpired as exc:
        return _fail(f"no end within {exc.timeout:.0f} s: {exc.cmd}")


def _show_pull(lab: Lab, image: Image) -> int:
    pod = lab.node.kubelet.run_pod("web")
    reference = lab.reference(image)
    lab.throttle.limit(image.layers_bytes / PULL_S)
    _say(
        f"Pod web ({pod.id[:13]}) needs {reference}: {len(image.layers)} layers, "
        f"{image.layers_bytes / MIB:.0f} MiB in about {PULL_S} s\n"
    )
    pull = lab.node.kubelet.start_pull(reference, pod)
    # A second watcher takes down the figures that the first one draws.
    records = lab.folder / "progress.json"
    command = ["image-pull-progress", "--progress", "json", pod.id]
    with (
        records.open("wb") as out,
        subprocess.Popen(_pycrictl(lab, *command), stdout=out, stderr=subprocess.DEVNULL) as second,
    ):
        try:
            status = _run(lab, "image-pull-progress", pod.id)
            if status != 0:
                return _fail(f"image-pull-progress ended with status {status}")
            image_id = pull.result(timeout=COMMAND_TIMEOUT_S).image_ref
            second.wait(COMMAND_TIMEOUT_S)
        finally:
            pull.cancel()
            second.terminate()
    if image_id != image.config_digest:
        return _fail(f"the pull ended with {image_id}, not {image.config_digest}")
    if not _compare(image, _shown_bytes(records)):
        return _fail("the command shows other figures than the manifest holds")
    return _run(lab, "images")


def _compare(image: Image, shown: dict[str, int]) -> bool:
    _say("\nLAYER              MANIFEST BYTES    SHOWN BYTES")
    for layer in image.layers:
        short_digest = layer.digest.removeprefix("sha256:")[:13]
        _say(f"{short_digest}  {layer.size_bytes:>18}{shown.get(layer.digest, 0):>15}")
    _say(f"{'total':13}  {image.layers_bytes:>18}{sum(shown.values()):>15}\n")
    return shown == {layer.digest: layer.size_bytes for layer in image.layers}


def _shown_bytes(records: Path) -> dict[str, int]:
    """The last `progress` of each layer digest in the JSON lines."""
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    return {line["layer"]: line["progress"] for line in lines if line.get("layer")}


def _pycrictl(lab: Lab, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "pycrictl", "-r", lab.node.endpoint, *arguments]


def _run(lab: Lab, *arguments: str) -> int:
    """Runs pycrictl in this terminal and returns its exit status."""
    _say(f"$ pycrictl {' '.join(arguments)}")
    return subprocess.run(
        _pycrictl(lab, *arguments), check=False, timeout=COMMAND_TIMEOUT_S
    ).returncode


def _say(text: str) -> None:
    print(text, flush=True)


def _fail(text: str) -> int:
    print(f"demo: {text}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
