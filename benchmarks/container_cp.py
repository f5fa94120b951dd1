"""``kubectl container-cp`` against curl and against ``kubectl cp``, all through one API server.

The API server is the stand-in of the tests, in this process; agent, containerd, kubectl and curl
are the real ones. What curl asks for stands behind the API server as the agent does, by TLS, and
goes over an upgraded connection as the bytes of a copy do: anything else the stand-in reads whole
before it hands it on. ``kubectl cp`` runs tar in the container, by an exec that goes the same way
to the runtime's stream server.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from benchmarks.copy import FOLDER, SIZE_BYTES, timed
from benchmarks.harness import Benchmark, CannotRunError, Goal, Measured, interleave
from pycrictl._proto import cri_pb2
from pycrictl.agent.copies.engine import CONTAINER_NAME, POD_UID
from tests.agent.copies.conftest import Plugin, plugin_of
from tests.agent.program import running
from tests.agent.standing import Cluster, standing
from tests.kube.aggregator import ApiService
from tests.kube.apiserver import make_node_certificates
from tests.node.kubelet import RUNTIME
from tests.node.lab import MIB, Lab
from tests.node.test_agent import STARTED
from tests.processes import peak_bytes
from tests.streaming.servers import Certificates

ROUNDS = 3
_CHUNK = 1024 * 1024
_END = b"\r\n0\r\n\r\n"


class Behind(ApiService):
    """Something behind the API server, on a port of its own with TLS."""

    def __init__(self, certificates: Certificates) -> None:
        self._context = certificates.server_context()
        self._context.num_tickets = 0  # the stand-in takes a ticket for content, and waits for it
        self._listener = socket.create_server(("127.0.0.1", 0))
        super().__init__(type(self).__name__, "v1", *self._listener.getsockname())

    def accept(self) -> None:
        """Serve each connection in a thread."""
        while True:
            raw, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(raw,), daemon=True).start()

    def _serve(self, raw: socket.socket) -> None:
        raise NotImplementedError


class Bytes(Behind):
    """Bytes in a process of its own, as an agent is: a file to GET, anything to PUT."""

    def __init__(self, certificates: Certificates, path: Path) -> None:
        super().__init__(certificates)
        self._path = path
        self._process = multiprocessing.get_context("fork").Process(target=self.accept, daemon=True)

    def __enter__(self) -> Bytes:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()

    def _serve(self, raw: socket.socket) -> None:
        with suppress(OSError), self._context.wrap_socket(raw, server_side=True) as client:
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(_CHUNK)
            if head.startswith(b"GET"):
                size = self._path.stat().st_size
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
                with self._path.open("rb") as file:
                    while data := file.read(_CHUNK):
                        client.sendall(data)
                return
            last = head[-len(_END) :]
            buffer = memoryview(bytearray(_CHUNK))
            while not last.endswith(_END) and (size := client.recv_into(buffer)):
                last = (last + bytes(buffer[max(size - len(_END), 0) : size]))[-len(_END) :]
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


class Exec(Behind):
    """The exec of a pod, which a kubelet would hand on to the runtime's stream server."""

    def __init__(self, certificates: Certificates, lab: Lab, container: str) -> None:
        super().__init__(certificates)
        self._lab, self._container = lab, container
        threading.Thread(target=self.accept, daemon=True).start()

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
            asked = cri_pb2.ExecRequest(
                container_id=self._container,
                cmd=given["command"],
                stdin="stdin" in given,
                stdout="stdout" in given,
                stderr="stderr" in given,
            )
            answer = self._lab.node.kubelet.call(RUNTIME + "Exec", asked, cri_pb2.ExecResponse)
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
    """A pod with a large file, the same file at the workstation, and ways between them."""

    folder: Path
    root: Path
    agent: int
    plugin: Plugin
    url: str
    credentials: list[str]

    def container_cp(self, source: str | Path, target: str | Path) -> tuple[float, int]:
        """Seconds that ``kubectl container-cp`` takes, and the most memory that it had."""
        command = ["kubectl", "container-cp", "--quiet", str(source), str(target)]
        return timed(command, self.plugin.environ)

    def kubectl_cp(self, source: str | Path, target: str | Path) -> float:
        """Seconds that ``kubectl cp`` takes."""
        command = ["kubectl", "cp", "--retries=0", str(source), str(target)]
        return timed(command, self.plugin.environ)[0]

    def curl(self, *words: str) -> float:
        """Seconds that curl takes."""
        upgrade = ["-H", "Connection: Upgrade", "-H", "Upgrade: bytes"]
        return timed(["curl", "-sSf", *self.credentials, *upgrade, *words, self.url])[0]


@contextmanager
def _scene() -> Iterator[Scene]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pcb-", dir=FOLDER)))
        certificates = make_node_certificates(folder)
        served = stack.enter_context(Bytes(certificates, folder / "large"))
        lab = stack.enter_context(Lab())
        kubelet = lab.node.kubelet
        image = lab.reference(lab.busybox)
        kubelet.pull(image)
        pod = kubelet.run_pod(kubelet.pod_config("web", uid="uid-default-web"))
        labels = {POD_UID: "uid-default-web", CONTAINER_NAME: "main"}
        container = kubelet.create_container(pod, image, labels=labels)
        kubelet.start_container(container)
        asked = cri_pb2.ContainerStatusRequest(container_id=container, verbose=True)
        answer = kubelet.call(RUNTIME + "ContainerStatus", asked, cri_pb2.ContainerStatusResponse)
        root = Path(f"/proc/{json.loads(answer.info['info'])['pid']}/root")
        cluster: Cluster = stack.enter_context(standing(certificates, folder))
        flags = "--admin-socket", f"unix://{folder}/none", "--spool-dir", str(folder / "spool")
        program = stack.enter_context(running(cluster, lab.node.endpoint, *flags))
        cluster.add_pod("web", state=STARTED, phase="Running")
        plugin = stack.enter_context(plugin_of(cluster.kubectl(), folder))
        _large(folder / "large")
        shutil.copyfile(folder / "large", root / "root/large")
        cluster.api.services += [served, Exec(certificates, lab, container)]
        names = {"--cacert": certificates.ca}
        names |= {"--cert": certificates.cert("admin"), "--key": certificates.key("admin")}
        yield Scene(
            folder,
            root,
            program.process.pid,
            plugin,
            f"{cluster.api.url}{served.prefix}/bytes",
            [word for pair in names.items() for word in pair],
        )


def _large(path: Path) -> None:
    with path.open("wb") as file:
        for _ in range(SIZE_BYTES // MIB):
            file.write(os.urandom(MIB))


def _moved(path: Path, copy: Callable[[], float]) -> float:
    """Return the speed of a copy in MiB/s; what it has made is removed."""
    seconds = copy()
    if path.stat().st_size != SIZE_BYTES:
        raise CannotRunError(f"{path} is not what was copied")
    path.unlink()
    return SIZE_BYTES / MIB / seconds


def _speed(*, into: bool, by_tar: bool) -> Measured:
    with _scene() as scene:
        here, there = scene.folder / "copy", scene.root / "root/copy"
        ends = (scene.folder / "large", "web:/root/copy") if into else ("web:/root/large", here)
        made = there if into else here

        def ours() -> float:
            return _moved(made, lambda: scene.container_cp(*ends)[0])

        def tar() -> float:
            return _moved(made, lambda: scene.kubectl_cp(*ends))

        def curl() -> float:
            if not into:
                return _moved(here, lambda: scene.curl("-o", str(here)))
            source = str(scene.folder / "large")
            words = ("-T", source, "-H", "Transfer-Encoding: chunked")
            return SIZE_BYTES / MIB / scene.curl(*words)

        return interleave(ours, tar if by_tar else curl, rounds=ROUNDS)


def _memory(*, agent: bool) -> Measured:
    """Peak memory with a large file, both ways, and with an empty one."""
    with _scene() as scene:
        (scene.root / "root/empty").touch()
        (scene.folder / "empty").touch()

        def peak(name: str) -> float:
            Path(f"/proc/{scene.agent}/clear_refs").write_text("5")  # forget its peak
            made = scene.folder / "copy"
            out = scene.container_cp(f"web:/root/{name}", made)[1]
            made.unlink()
            back = scene.container_cp(scene.folder / name, "web:/root/copy")[1]
            (scene.root / "root/copy").unlink()
            return (peak_bytes(scene.agent) if agent else max(out, back)) / MIB

        measured = interleave(partial(peak, "large"), partial(peak, "empty"), rounds=3)
        return Measured(measured.ours, measured.bare, measured.ours - measured.bare)


def _row(name: str, what: str, goal: Goal, unit: str, measure: Callable[[], Measured]) -> Benchmark:
    return Benchmark(name, what, goal, lambda figure: f"{figure:.0f} {unit}", measure)


BENCHMARKS = (
    _row(
        "cluster-cp-out",
        "1 GiB out of a pod by 'kubectl container-cp', start included / by curl",
        Goal(">=", 0.5),
        "MiB/s",
        partial(_speed, into=False, by_tar=False),
    ),
    _row(
        "cluster-cp-in",
        "the same into a pod",
        Goal(">=", 0.5),
        "MiB/s",
        partial(_speed, into=True, by_tar=False),
    ),
    _row(
        "cluster-tar-out",
        "1 GiB out of a pod by 'kubectl container-cp' / by 'kubectl cp'",
        Goal(">=", 2.0),
        "MiB/s",
        partial(_speed, into=False, by_tar=True),
    ),
    _row(
        "cluster-tar-in",
        "the same into a pod",
        Goal(">=", 2.0),
        "MiB/s",
        partial(_speed, into=True, by_tar=True),
    ),
    _row(
        "cluster-cp-mem",
        "'kubectl container-cp': peak memory with 1 GiB - with an empty file",
        Goal("<=", 16),
        "MiB",
        partial(_memory, agent=False),
    ),
    _row(
        "cluster-agent-mem",
        "the same of the agent",
        Goal("<=", 16),
        "MiB",
        partial(_memory, agent=True),
    ),
)
