"""A node as an administrator finds it: sockets, files and image names at their usual places.

Commands run as they are written in man pages and in the README, see `Machine`. The names that they
use exist: a pod and a container ``web``, files ``pod.yaml`` and ``container.yaml``, and images
of ``docker.io`` and ``registry.example``, which come from the node's own registry.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Final, Self

from pycrictl._proto import cri_pb2
from tests.waiting import wait_until

from .images import File, text_file
from .kubelet import Kubelet
from .lab import MIB, Lab
from .machine import ROOT, WAIT_S, Machine, ended, on_terminal

BUSYBOX: Final = "docker.io/library/busybox:1.36"
APP: Final = "registry.example/private/app:1"
LOGIN: Final = ("reader", "open sesame")

_WEB: Final = """trap 'exit 0' TERM
echo one failure >&2
while true; do echo serving; sleep 0.2 & wait $!; done"""


@dataclass(frozen=True)
class Done:
    code: int
    stdout: str
    stderr: str = ""

    @property
    def text(self) -> str:
        return self.stdout + self.stderr


@dataclass(frozen=True)
class _Started:
    line: str
    process: subprocess.Popen[str]
    output: Path

    @property
    def text(self) -> str:
        return self.output.read_text()

    def wait_for(self, expected: str) -> None:
        wait_until(
            lambda: expected in self.text or self.process.poll() is not None, log=self.output
        )

    def interrupt(self) -> None:
        with suppress(ProcessLookupError):  # it ended by itself
            os.killpg(self.process.pid, signal.SIGINT)


class House:
    """A context manager that starts the node and everything on it."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.lab = stack.enter_context(Lab())
            self.folder = self.lab.folder / "house"
            self.folder.mkdir()
            self._push_images()
            self._write_files()
            self._machine = stack.enter_context(Machine(self.lab))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # Commands

    def run(self, line: str, **environ: str) -> Done:
        process = self._start(line, environ=environ, stderr=subprocess.PIPE)
        stdout, stderr = ended(process)
        return Done(process.returncode, stdout, stderr)

    def run_until(self, line: str, expected: str) -> Done:
        with self._started([line]) as [command]:
            command.wait_for(expected)
            command.interrupt()
        return Done(command.process.returncode, command.text)

    def watch(self, *lines: str) -> list[Done]:
        """Run command lines that watch the slow pull, which speeds up once they have seen it."""
        with self._started(lines) as commands:
            for command in commands:
                if "|" not in command.line or len(commands) == 1:
                    command.wait_for("slow")
            self.lab.registry.limit(None)
        return [Done(command.process.returncode, command.text) for command in commands]

    def run_on_terminal(self, line: str, typed: str) -> Done:
        return Done(*on_terminal(partial(self._start, line), typed))

    @contextmanager
    def _started(self, lines: Sequence[str]) -> Iterator[list[_Started]]:
        with ExitStack() as stack:
            commands = []
            for number, line in enumerate(lines):
                output = self.folder.parent / f"output-{number}"
                with output.open("wb") as file:
                    process = self._start(line, stdout=file)
                stack.callback(ended, process)
                commands.append(_Started(line, process, output))
            yield commands

    def _start(
        self,
        line: str,
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int | IO[bytes] = subprocess.PIPE,
        stderr: int = subprocess.STDOUT,
        environ: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        return self._machine.start(
            "bash", "-o", "pipefail", "-c", line,
            folder=self.folder,
            environ={"HOME": str(self.folder.parent), **(environ or {})},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )  # fmt: skip

    # What is on the node

    def tidy(self) -> None:
        """Undo the changes of commands: to pods, containers, images, and files of ``/etc``."""
        assert self.run("rm -f /etc/crictl.yaml /etc/pycrictl.toml").code == 0
        for path in set(self.folder.iterdir()) - self._files:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.lab.registry.heal()
        self.lab.registry.limit(None)
        if self._present() != _EXPECTED:
            self._furnish()
        assert self._present() == _EXPECTED
        for image in (BUSYBOX, self.unused):  # two examples remove them
            self.lab.node.kubelet.pull(image)

    @contextmanager
    def slow_pull(self, kubelet: Kubelet | None = None, *, fails: bool = False) -> Iterator[None]:
        """Pull an image for the pod ``web`` meanwhile, past the proxy or through it."""
        lab, name = self.lab, f"slow:{time.monotonic_ns()}"
        layers = lab.layout.random_layers([MIB] * 3, seed=time.monotonic_ns())
        image = lab.layout.image(name, layers)
        reference = lab.push(image)
        if fails:
            lab.registry.cut(f"blobs/{image.layers[1].digest}", after_bytes=MIB // 2)
        lab.registry.limit(image.layers_bytes / (12 if fails else 60))
        pull = (kubelet or lab.node.kubelet).start_pull(reference, self._web)
        try:
            wait_until(lab.node.store.ingests)
            yield
        finally:
            lab.registry.limit(None)
            pull.exception(WAIT_S) if fails else pull.result(WAIT_S)

    def proxy(self) -> AbstractContextManager[Kubelet]:
        return self._machine.proxy(3)

    def require_login(self) -> None:
        """Make the registry require a login with the password in the file ``password``."""
        self.lab.registry.require_login(*LOGIN)

    def _present(self) -> dict[str, list[str]]:
        kubelet = self.lab.node.kubelet
        pods = kubelet.ask("ListPodSandbox").items
        containers = kubelet.ask("ListContainers").containers
        names = [
            f"{item.metadata.name} {cri_pb2.PodSandboxState.Name(item.state)}" for item in pods
        ]
        inner = [
            f"{item.metadata.name} {cri_pb2.ContainerState.Name(item.state)}" for item in containers
        ]
        return {"pods": sorted(names), "containers": sorted(inner)}

    def _furnish(self) -> None:
        kubelet = self.lab.node.kubelet
        kubelet.remove_pods()
        kubelet.pull(BUSYBOX)
        labels = {"app": "web", "io.kubernetes.pod.namespace": "default"}
        config = kubelet.pod_config(
            "web", labels=labels, log_directory=str(self.lab.folder / "logs")
        )
        old_config = kubelet.pod_config("old")
        dns_config = kubelet.pod_config("dns", namespace="kube-system")
        with ThreadPoolExecutor() as pool:
            web, old, _ = pool.map(kubelet.run_pod, (config, old_config, dns_config))
        self._web = web
        main = kubelet.create_container(
            web, BUSYBOX, ["sh", "-c", _WEB], name="web", labels=labels, log_path="web.log"
        )
        kubelet.start_container(main)
        done = kubelet.create_container(web, BUSYBOX, ["true"], name="done")
        kubelet.start_container(done)
        kubelet.create_container(web, BUSYBOX, ["sleep", "100"], name="waiting")
        kubelet.ask("StopPodSandbox", pod_sandbox_id=old.id)
        wait_until(lambda: self._present() == _EXPECTED)

    def _push_images(self) -> None:
        lab = self.lab
        settings = lab.layout.layer(
            [
                File("etc/nginx", mode=0o755, is_folder=True),
                text_file("etc/nginx/nginx.conf", "events {}\n"),
                text_file("etc/hostname", "web\n"),
                text_file("etc/app.conf", "port 8080\n"),
            ]
        )
        lab.push(lab.layout.image("library/busybox:1.36", [lab.base, settings]))
        for seed, name in enumerate(("private/app:1", "team/unused:1")):
            [layer] = lab.layout.random_layers([1000], seed=seed)
            image = lab.layout.image(name, [lab.base, layer])
            lab.push(image)
        self.unused = f"{APP.partition('/')[0]}/team/unused@{image.digest}"
        lab.serve_as(BUSYBOX.partition("/")[0], APP.partition("/")[0])

    def _write_files(self) -> None:
        pod = {
            "metadata": {"name": "job", "namespace": "default"},
            "log_directory": str(self.lab.folder / "logs"),
            "linux": {
                "cgroup_parent": f"/{self.lab.folder.name}",
                "security_context": {"namespace_options": {"network": "NODE"}},
            },
        }
        container = {
            "metadata": {"name": "job"},
            "image": {"image": BUSYBOX},
            "command": ["sleep", "100"],
            "log_path": "job.log",
            "linux": {"security_context": {"namespace_options": {"network": "NODE"}}},
        }
        (self.folder / "pod.yaml").write_text(json.dumps(pod, indent=2))
        (self.folder / "container.yaml").write_text(json.dumps(container, indent=2))
        (self.folder / "password").write_text(f"{LOGIN[1]}\n")
        entry = {"username": LOGIN[0], "password": LOGIN[1]}
        logins = {"auths": {"registry.example": entry}}
        (self.folder / "auth.json").write_text(json.dumps(logins))
        (self.folder / "nginx.conf").write_text("events {}\n")
        (self.folder / "images.txt").write_text("docker.io/library/busybox:1.36\n")
        (self.folder / "packaging").symlink_to(ROOT / "packaging")
        self._files = set(self.folder.iterdir())


_EXPECTED: Final = {
    "pods": sorted(("web SANDBOX_READY", "dns SANDBOX_READY", "old SANDBOX_NOTREADY")),
    "containers": sorted(
        ("web CONTAINER_RUNNING", "done CONTAINER_EXITED", "waiting CONTAINER_CREATED")
    ),
}
