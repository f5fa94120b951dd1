"""``kubectl container-cp`` against ``kubectl cp``, both through one API server.

The API server is the tests' stand-in, in this process; agent, containerd and kubectl are real.
``kubectl cp`` runs tar in the container, by an exec through the same API server to the runtime's
stream server.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from benchmarks.copy import FOLDER, SIZE_BYTES, timed
from benchmarks.harness import CannotRunError, Goal, Measured, interleave, row
from pycrictl.cluster.agent.copies.sessions import CONTAINER_NAME, POD_UID
from tests.cluster.agent.copies.conftest import Plugin, plugin_of
from tests.cluster.agent.program import running
from tests.cluster.agent.standing import Cluster, standing
from tests.e2e.node.lab import MIB, Lab
from tests.kube.aggregator import ApiService
from tests.kube.apiserver import make_node_certificates
from tests.streams.servers import Certificates
from tests.support.pull_objects import STARTED

ROUNDS = 3
SMALL_FILES = 100_000
_SMALL_BYTES = 4096
_CHUNK = 1024 * 1024


class Exec(ApiService):
    """Forwards exec in a pod to the runtime's stream server, as a kubelet would.

    It listens on a TLS port of its own.
    """

    def __init__(self, certificates: Certificates, lab: Lab, container: str) -> None:
        self._context = certificates.server_context()
        self._context.num_tickets = 0  # the stand-in would take a ticket for content, and wait
        self._listener = socket.create_server(("127.0.0.1", 0))
        super().__init__("exec", "v1", *self._listener.getsockname())
        self._lab, self._container = lab, container
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            raw, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(raw,), daemon=True).start()

    def owns(self, path: str) -> bool:
        return path.endswith("/pods/web/exec")

    def _serve(self, raw: socket.socket) -> None:
        with suppress(OSError), self._context.wrap_socket(raw, server_side=True) as client:
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(_CHUNK)
            lines = head.split(b"\r\n")
            method, target, version = lines[0].decode().split()
            given = parse_qs(urlsplit(target).query)
            answer = self._lab.node.kubelet.ask(
                "Exec",
                container_id=self._container,
                cmd=given["command"],
                stdin="stdin" in given,
                stdout="stdout" in given,
                stderr="stderr" in given,
            )
            url = urlsplit(answer.url)
            assert url.hostname is not None
            with socket.create_connection((url.hostname, url.port or 80)) as upstream:
                first = f"{method} {url.path} {version}".encode()
                upstream.sendall(b"\r\n".join([first, *lines[1:]]))
                back = threading.Thread(target=_pump, args=(upstream, client))
                back.start()
                _pump(client, upstream)
                back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


@dataclass
class Scene:
    """A pod with a large file, the same file on the workstation, and both commands to copy it."""

    folder: Path
    root: Path
    plugin: Plugin

    def container_cp(self, source: str | Path, target: str | Path) -> float:
        command = ["kubectl", "container-cp", "--quiet", str(source), str(target)]
        return timed(command, self.plugin.environ)[0]

    def kubectl_cp(self, source: str | Path, target: str | Path) -> float:
        command = ["kubectl", "cp", "--retries=0", str(source), str(target)]
        return timed(command, self.plugin.environ)[0]


@contextmanager
def _scene() -> Iterator[Scene]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pcb-", dir=FOLDER)))
        certificates = make_node_certificates(folder)
        lab = stack.enter_context(Lab())
        kubelet = lab.node.kubelet
        image = lab.reference(lab.busybox)
        kubelet.pull(image)
        pod = kubelet.run_pod(kubelet.pod_config("web", uid="uid-default-web"))
        labels = {POD_UID: "uid-default-web", CONTAINER_NAME: "main"}
        container = kubelet.create_container(pod, image, labels=labels)
        kubelet.start_container(container)
        root = Path(f"/proc/{kubelet.pid(container)}/root")
        cluster: Cluster = stack.enter_context(standing(certificates, folder))
        flags = "--admin-socket", f"unix://{folder}/none", "--spool-dir", str(folder / "spool")
        stack.enter_context(running(cluster, lab.node.endpoint, *flags))
        cluster.add_pod("web", state=STARTED, phase="Running")
        plugin = stack.enter_context(plugin_of(cluster.kubectl(), folder))
        _large(folder / "large")
        shutil.copyfile(folder / "large", root / "root/large")
        cluster.api.services.append(Exec(certificates, lab, container))
        yield Scene(folder, root, plugin)


def _large(path: Path) -> None:
    with path.open("wb") as file:
        for _ in range(SIZE_BYTES // MIB):
            file.write(os.urandom(MIB))


def _moved(path: Path, copy: Callable[[], float]) -> float:
    """Return the speed of a copy in MiB/s, and remove the copy."""
    seconds = copy()
    if path.stat().st_size != SIZE_BYTES:
        raise CannotRunError(f"{path} is not what was copied")
    path.unlink()
    return SIZE_BYTES / MIB / seconds


def _speed(*, into: bool) -> Measured:
    with _scene() as scene:
        here, there = scene.folder / "copy", scene.root / "root/copy"
        ends = (scene.folder / "large", "web:/root/copy") if into else ("web:/root/large", here)
        made = there if into else here
        return interleave(
            lambda: _moved(made, lambda: scene.container_cp(*ends)),
            lambda: _moved(made, lambda: scene.kubectl_cp(*ends)),
            rounds=ROUNDS,
        )


def _small(*, into: bool) -> Measured:
    """Measure seconds for a tree of small files; on tmpfs, since a disk would dominate."""
    with _scene() as scene, tempfile.TemporaryDirectory(prefix="pcb-", dir="/dev/shm") as folder:
        (scene.root / "root/large").unlink()
        mount = ["/bin/busybox", "mount", "-t", "tmpfs", "-o", "size=1g", "tmpfs", "/root"]
        process = scene.root.parent.name
        subprocess.run(["nsenter", "--target", process, "--mount", *mount], check=True)
        for top in (Path(folder), scene.root / "root"):
            for number in range(SMALL_FILES):
                file = top / f"small/{number // 200}/{number}"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(os.urandom(_SMALL_BYTES))
        here, there = Path(folder, "copy"), scene.root / "root/copy"
        ends = (f"{folder}/small", "web:/root/copy") if into else ("web:/root/small", here)

        def seconds(copy: Callable[[str, str | Path], float]) -> float:
            taken = copy(*ends)
            made = there if into else here
            if sum(path.is_file() for path in made.rglob("*")) != SMALL_FILES:
                raise CannotRunError(f"{made} is not what was copied")
            shutil.rmtree(made)
            return taken

        measured = interleave(
            lambda: seconds(scene.container_cp), lambda: seconds(scene.kubectl_cp), rounds=ROUNDS
        )
        shutil.rmtree(scene.root / "root/small")  # else the container takes long to end
        return measured


BENCHMARKS = (
    row(
        "cluster-tar-out",
        "1 GiB out of a pod by 'kubectl container-cp' / by 'kubectl cp'",
        Goal(">=", 1.3),
        "MiB/s",
        partial(_speed, into=False),
    ),
    # The ratio is higher where kubectl cp is slower. The copy keeps two processors busy, and a
    # quarter of that is the stand-in for the API server, which kubectl cp needs too.
    row(
        "cluster-tar-in",
        "the same into a pod",
        Goal(">=", 1.7),
        "MiB/s",
        partial(_speed, into=True),
    ),
    row(
        "cluster-small-out",
        "100,000 files of 4 KiB out of a pod by 'kubectl container-cp' / by 'kubectl cp'",
        Goal("<=", 1.0),
        "s",
        partial(_small, into=False),
        digits=1,
    ),
    row(
        "cluster-small-in",
        "the same into a pod",
        Goal("<=", 1.0),
        "s",
        partial(_small, into=True),
        digits=1,
    ),
)
