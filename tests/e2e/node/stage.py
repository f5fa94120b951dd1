"""The stage of demo and playground: a slow registry, a proxy, and pods that are kept running."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import grpc

from .daemon import DaemonFailed
from .images import File, Layer, busybox, text_file
from .lab import MIB, Lab
from .machine import Machine

REGISTRY: Final = "registry.example"
LIMIT: Final = 1
"""How many images the proxy pulls at once."""

_QUICK: Final = 4
"""How often an ended container is restarted without a pause."""

_BACK_OFF_S: Final = 60.0
_PULL_S: Final = 3600.0
_POLL_S: Final = 0.2


@dataclass(frozen=True)
class Workload:
    """A pod of one container, ``main``, which is restarted as by the kubelet when it ends."""

    namespace: str
    name: str
    image: str
    command: tuple[str, ...]


WEB: Final = Workload(
    "default", "web", "shop/web:1.4", ("/httpd", "-f", "-p", "127.0.0.1:0", "-h", "/srv")
)
"""It has neither a shell nor tar."""

API: Final = Workload(
    "default",
    "api",
    "shop/api:2",
    ("sh", "-c", "echo connecting to db:5432; echo no database; exit 3"),
)
BATCH: Final = Workload("jobs", "batch", "jobs/batch:7", ("sleep", "1000000"))
REPORT: Final = Workload("jobs", "report", "jobs/report:2", ("sleep", "1000000"))
CACHE: Final = "shop/cache:3"
"""An image that no pod uses."""

BUSYBOX: Final = "docker.io/library/busybox:1.36"


class Failed(Exception): ...


def perform(name: str, play: Callable[[Stage], None]) -> int:
    """Run ``play`` on a stage, as the program ``name``; return the exit status."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return _fail(name, "the throwaway node needs Linux and root")
    sys.stdout.write("Starting a throwaway node: containerd, a slow registry, and a proxy …\n")
    sys.stdout.flush()
    try:
        with Stage() as stage:
            play(stage)
    except KeyboardInterrupt:
        sys.stdout.write("\nInterrupted; the node is gone.\n")
        return 130
    except Failed as exc:
        return _fail(name, str(exc))
    except (DaemonFailed, AssertionError, OSError, grpc.RpcError) as exc:
        return _fail(name, f"the node does not work here: {exc}")
    except subprocess.TimeoutExpired as exc:
        return _fail(name, f"no end within {exc.timeout:.0f} s: {exc.cmd}")
    return 0


def _fail(name: str, text: str) -> int:
    sys.stderr.write(f"{name}: {text}\n")
    return 1


class Stage:
    """A context manager that starts a node without pods behind a proxy."""

    def __enter__(self) -> Self:
        self._is_over = threading.Event()
        self._pulls: list[grpc.Future[Any]] = []
        with ExitStack() as stack:
            self.lab = stack.enter_context(Lab())
            self.lab.serve_as(REGISTRY, BUSYBOX.partition("/")[0])
            self._push_images()
            self.lab.node.kubelet.pull(f"{REGISTRY}/{API.image}")
            self.desk = self.lab.folder / "desk"
            self.desk.mkdir()
            (self.desk / "nginx.conf").write_text("events {}\n")
            (self.desk / "images.txt").write_text(f"{BUSYBOX}\n")
            self._machine = stack.enter_context(Machine(self.lab))
            self.kubelet = stack.enter_context(self._machine.proxy(LIMIT))
            stack.callback(self._is_over.set)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, *words: str, **how: Any) -> subprocess.Popen[str]:
        environ = {
            "CONTAINER_RUNTIME_ENDPOINT": "unix:///run/pycrictl/cri.sock",
            # The pulls that a user types do not wait in the line of the kubelet's.
            "IMAGE_SERVICE_ENDPOINT": "unix:///run/containerd/containerd.sock",
        }
        return self._machine.start(*words, folder=self.desk, environ=environ, **how)

    def logs(self, workload: Workload) -> Path:
        return self.lab.folder / "logs" / workload.name

    def keep(self, workload: Workload) -> None:
        threading.Thread(target=self._keep, args=[workload], daemon=True).start()

    def pull(self, image: str) -> None:
        # A pull without a reference to it would be cancelled.
        self._pulls.append(self.kubelet.start_pull(f"{REGISTRY}/{image}", timeout_s=_PULL_S))

    def _keep(self, workload: Workload) -> None:
        # Closed channels and calls that were cut short: the stage is over.
        with suppress(grpc.RpcError, ValueError):
            kubelet, image = self.kubelet, f"{REGISTRY}/{workload.image}"
            config = kubelet.pod_config(
                workload.name,
                namespace=workload.namespace,
                labels={
                    "io.kubernetes.pod.name": workload.name,
                    "io.kubernetes.pod.namespace": workload.namespace,
                },
                log_directory=str(self.logs(workload)),
            )
            pod = kubelet.run_pod(config)
            if not any(image in present.repo_tags for present in kubelet.images()):
                kubelet.pull(image, pod, timeout_s=_PULL_S)
            for attempt in itertools.count():
                container = kubelet.create_container(
                    pod,
                    image,
                    workload.command,
                    attempt=attempt,
                    labels=config.labels,
                    log_path=f"{attempt}.log",
                )
                kubelet.start_container(container)
                while container in kubelet.running_containers():
                    if self._is_over.wait(_POLL_S):
                        return
                if self._is_over.wait(0 if attempt < _QUICK else _BACK_OFF_S):
                    return
                kubelet.remove_container(container)

    def _push_images(self) -> None:
        lab, server = self.lab, busybox("httpd")
        files = [
            text_file("srv/index.html", "<h1>It works, and there is no shell here.</h1>\n"),
            File("etc/nginx", mode=0o755, is_folder=True),
        ]
        for name, first, sizes_mib in (
            (WEB.image, lab.layout.layer([server, *files]), (18, 9, 12)),
            (API.image, lab.base, ()),
            (BATCH.image, lab.base, (10, 6)),
            (REPORT.image, lab.base, (8, 3)),
            (CACHE, lab.base, (14, 10)),
            (BUSYBOX.partition("/")[2], lab.base, ()),
        ):
            sizes = [size * MIB for size in sizes_mib]
            layers: list[Layer] = [first, *lab.layout.random_layers(sizes, seed=len(name))]
            lab.push(lab.layout.image(name, layers))
