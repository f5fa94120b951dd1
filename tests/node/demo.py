"""Shows `pycrictl image-pull-progress` behind `pycrictl proxy`, and on a containerd without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import grpc

from pycrictl._proto import cri_pb2
from tests.proxy.program import Program

from .images import Image
from .kubelet import RUNTIME, Pod
from .lab import MIB, Lab

WEB_S: Final = 9
BATCH_S: Final = 3
PLAIN_S: Final = 4
COMMAND_TIMEOUT_S: Final = 90


class Failed(Exception):
    """Something was not as it should be."""


def main() -> int:
    """Runs the demo; 0 when the pulls, the commands and their figures were right."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return _fail("the throwaway node needs Linux and root")
    _say("Starting a throwaway node: containerd, a registry, and a slow network …")
    try:
        with Lab() as lab:
            _show_proxy(lab)
            _show_plain(lab)
        return 0
    except KeyboardInterrupt:
        _say("\nInterrupted; the node is gone.")
        return 130
    except Failed as exc:
        return _fail(str(exc))
    except grpc.RpcError as exc:
        return _fail(f"the node says: {exc}")
    except subprocess.TimeoutExpired as exc:
        return _fail(f"no end within {exc.timeout:.0f} s: {exc.cmd}")


def _show_proxy(lab: Lab) -> None:
    """Two pods, one pull at a time: the second one waits in line."""
    web, batch = _image(lab, "shop/web:1.4", 5, 18, 9, 12), _image(lab, "shop/batch:7", 10, 6)
    with ExitStack() as stack:
        proxy = stack.enter_context(Program(lab.folder, lab.node.endpoint, *_LIMIT))
        stack.callback(proxy.log_path.unlink, missing_ok=True)
        pods = [proxy.kubelet.run_pod(name) for name in ("web", "batch")]
        _say(
            f"pycrictl proxy {' '.join(_LIMIT)} is in front of containerd.\n"
            f"Pod default/web needs {lab.reference(web)}, {web.layers_bytes / MIB:.0f} MiB;\n"
            f"pod default/batch needs {lab.reference(batch)}.\n"
        )
        lab.throttle.limit(0)  # until both are watched
        pulls = [proxy.kubelet.start_pull(lab.reference(web), pods[0])]
        _say(f"ImagePullProgress(default/web) answers\n{_url(proxy, pods[0])}")
        pulls.append(proxy.kubelet.start_pull(lab.reference(batch), pods[1]))
        watchers = [_Watcher(stack, lab, proxy.endpoint, f"default/{n}") for n in ("web", "batch")]
        place = watchers[1].first("queue_position")
        lab.throttle.limit(web.layers_bytes / WEB_S)
        _run(proxy.endpoint, "image-pull-progress", "default/web")
        _say(
            f"Meanwhile {place['image']} of pod default/batch was\n"
            f"number {place['queue_position']} in line, behind {place['behind']}.\n"
        )
        lab.throttle.limit(batch.layers_bytes / BATCH_S)
        _run(proxy.endpoint, "image-pull-progress", "default/batch")
        for pull, image, watcher in zip(pulls, (web, batch), watchers, strict=True):
            _check(pull, image)
            watcher.compare(image)
        if not any(line["image"] == lab.reference(web) for line in watchers[0].lines()):
            raise Failed("the command shows another name than the pod's")


def _show_plain(lab: Lab) -> None:
    """One pull on containerd alone, which says neither the pod nor the tag."""
    image = _image(lab, "shop/plain:1", 8, 4, 8)
    _say("\nAnd without the proxy, on containerd alone:\n")
    lab.throttle.limit(image.layers_bytes / PLAIN_S)
    pull = lab.node.kubelet.start_pull(lab.reference(image))
    with ExitStack() as stack:
        watcher = _Watcher(stack, lab, lab.node.endpoint)
        _run(lab.node.endpoint, "image-pull-progress")
        _check(pull, image)
        watcher.compare(image)


_LIMIT: Final = ("--max-parallel-image-pulls", "1")


class _Watcher:
    """A second watcher, which takes down the figures that the first one draws."""

    def __init__(self, stack: ExitStack, lab: Lab, endpoint: str, *pod: str) -> None:
        self._path = lab.folder / f"progress-{'-'.join(pod).replace('/', '-') or 'all'}.json"
        out = stack.enter_context(self._path.open("wb"))
        words = _pycrictl(endpoint, "image-pull-progress", "--progress", "json", *pod)
        self._process = stack.enter_context(
            subprocess.Popen(words, stdout=out, stderr=subprocess.DEVNULL)
        )
        stack.callback(self._process.terminate)

    def lines(self) -> list[dict[str, Any]]:
        """What it has written so far."""
        lines = Path(self._path).read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def first(self, key: str) -> dict[str, Any]:
        """Waits for a line that has a key."""
        limit_at = time.monotonic() + COMMAND_TIMEOUT_S
        while time.monotonic() < limit_at:
            if found := next((line for line in self.lines() if line.get(key)), None):
                return found
            time.sleep(0.05)
        raise Failed(f"no line has {key}")

    def compare(self, image: Image) -> None:
        """Waits for its end and compares its last figures with the manifest."""
        if self._process.wait(COMMAND_TIMEOUT_S):
            raise Failed(f"the second watcher ended with status {self._process.returncode}")
        shown = {line["layer"]: line["progress"] for line in self.lines() if line.get("layer")}
        _say(f"\n{image.name:18}MANIFEST BYTES    SHOWN BYTES")
        for layer in image.layers:
            short_digest = layer.digest.removeprefix("sha256:")[:13]
            _say(f"{short_digest}  {layer.size_bytes:>17}{shown.get(layer.digest, 0):>15}")
        _say(f"{'total':13}  {image.layers_bytes:>17}{sum(shown.values()):>15}")
        if shown != {layer.digest: layer.size_bytes for layer in image.layers}:
            raise Failed("the command shows other figures than the manifest holds")


def _image(lab: Lab, name: str, *sizes_mib: int) -> Image:
    layers = lab.layout.random_layers([size * MIB for size in sizes_mib], seed=sum(sizes_mib))
    image = lab.layout.image(name, layers)
    lab.push(image)
    return image


def _url(proxy: Program, pod: Pod) -> str:
    request = cri_pb2.ImagePullProgressRequest(pod_sandbox_id=pod.id)
    answer = cri_pb2.ImagePullProgressResponse
    return proxy.kubelet.call(RUNTIME + "ImagePullProgress", request, answer).url


def _check(pull: grpc.Future[cri_pb2.PullImageResponse], image: Image) -> None:
    image_id = pull.result(timeout=COMMAND_TIMEOUT_S).image_ref
    if image_id != image.config_digest:
        raise Failed(f"the pull ended with {image_id}, not {image.config_digest}")


def _pycrictl(endpoint: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "pycrictl", "-r", endpoint, *arguments]


def _run(endpoint: str, *arguments: str) -> None:
    """Runs pycrictl in this terminal."""
    _say(f"$ pycrictl {' '.join(arguments)}")
    run = subprocess.run(_pycrictl(endpoint, *arguments), check=False, timeout=COMMAND_TIMEOUT_S)
    if run.returncode:
        raise Failed(f"{arguments[0]} ended with status {run.returncode}")


def _say(text: str) -> None:
    print(text, flush=True)


def _fail(text: str) -> int:
    print(f"demo: {text}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
