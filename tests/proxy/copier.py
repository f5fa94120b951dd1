"""A fake container, and a client that copies through a proxy in front of it."""

from __future__ import annotations

import json
import re
import socket
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.copy.rules.outcome import Outcome, decode
from pycrictl.copy.transfer.link import SocketLink, open_link
from pycrictl.copy.transfer.messages import CHANNEL_END, STATUS, STREAM_PROTOCOL, TO_CONTAINER
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.streams.target import parse_url
from pycrictl.streams.wire.tar.header import END_OF_ARCHIVE
from tests.copy.hostile import FILE, member
from tests.copy.transfer.conftest import Copier as BaseCopier
from tests.e2e.node.kubelet import RUNTIME
from tests.fakecri.server import FakeServer
from tests.processes import descriptors
from tests.proxy.program import Program
from tests.support.containers import ID, stop
from tests.support.containers import start as start_container
from tests.waiting import wait_until

Start = Callable[..., Program]
MIB = 1 << 20
ARCHIVE = member(b"f", FILE, b"content") + END_OF_ARCHIVE


class Pretended:
    """A fake container, and the fake runtime's responses about it.

    Attributes:
        root: its root directory.
        state: its state.
        runtime_type: the type of its runtime, as containerd reports it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = cri_pb2.CONTAINER_RUNNING
        self.runtime_type = "io.containerd.runc.v2"
        self.pods = {ID: "pod1", "d" * 64: "pod2"}
        self.process = start_container(root)

    def containers(self, request: Any, context: Any) -> cri_pb2.ListContainersResponse:
        containers = [
            cri_pb2.Container(id=container_id, pod_sandbox_id=pod, state=self.state)
            for container_id, pod in self.pods.items()
            if container_id.startswith(request.filter.id)
        ]
        return cri_pb2.ListContainersResponse(containers=containers)

    def status(self, request: Any, context: Any) -> cri_pb2.ContainerStatusResponse:
        info = {"pid": self.process.pid, "runtimeType": self.runtime_type}
        status = cri_pb2.ContainerStatus(id=request.container_id, state=self.state, started_at=1)
        return cri_pb2.ContainerStatusResponse(status=status, info={"info": json.dumps(info)})


@contextmanager
def pretended(fake: FakeServer, root: Path) -> Iterator[Pretended]:
    (root / "to").mkdir(parents=True)
    container = Pretended(root)
    fake.offer("ListContainers", container.containers)
    fake.offer("ContainerStatus", container.status)
    try:
        yield container
    finally:
        stop(container.process)


@pytest.fixture
def container(as_root: None, fake: FakeServer) -> Iterator[Pretended]:
    # Not in pytest's folder, which may be in memory.
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp", prefix="pct-") as folder,
        pretended(fake, Path(folder, "root")) as container,
    ):
        yield container


class Copier(BaseCopier):
    """Copies with the method ``rpc`` through a whole proxy; can also make single calls."""

    def __init__(self, proxy: Program) -> None:
        super().__init__(CriClient(str(proxy.socket_path), timeout_s=10), ID)
        self.proxy = proxy

    def ask_to(
        self, path: str = "/to", size: int = 1024, checksum: int = 0, container: str = ID
    ) -> str:
        request = cri_pb2.CopyToContainerRequest(
            container_id=container, path=path, size=size, checksum=checksum
        )
        response = cri_pb2.CopyToContainerResponse
        return self.proxy.kubelet.call(RUNTIME + "CopyToContainer", request, response).url

    def send_archive(self, path: str, container: str = ID) -> SocketLink:
        """Open a copy and send ``ARCHIVE``, without the message that ends it."""
        connection = stream(self.ask_to(path, len(ARCHIVE), zlib.crc32(ARCHIVE), container))
        connection.send(TO_CONTAINER, ARCHIVE)
        return connection

    def ask_from(self, path: str, container: str = ID) -> cri_pb2.CopyFromContainerResponse:
        request = cri_pb2.CopyFromContainerRequest(container_id=container, path=path)
        response = cri_pb2.CopyFromContainerResponse
        return self.proxy.kubelet.call(RUNTIME + "CopyFromContainer", request, response)

    @property
    def copies(self) -> list[dict[str, Any]]:
        return self.proxy.copies

    def wait_until_idle(self) -> None:
        """Wait until all copies are over, and then until what they held is closed."""
        wait_until(lambda: self.copies == [])
        wait_until(lambda: spools(self.proxy.pid) == [])


@pytest.fixture
def copier(container: Pretended, start: Start, request: pytest.FixtureRequest) -> Iterator[Copier]:
    """A copier at a proxy with the flags in the fixture's parameter, if any."""
    copier = Copier(start(*getattr(request, "param", ())))
    with copier.client:
        yield copier
        copier.wait_until_idle()


def spools(pid: int) -> list[str]:
    """Return the deleted files in /var/tmp that a process holds open; none once it has ended."""
    pattern = re.compile(r"/var/tmp/(.*/)?#\d+ \(deleted\)")
    with suppress(FileNotFoundError):
        return [name for name in descriptors(pid) if pattern.fullmatch(name)]
    return []


def refusal(call: Callable[..., object], *arguments: object, **named: object) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, **named)
    error: Any = caught.value
    return error.code().name, error.details()


UPGRADE = (
    "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==",
)  # fmt: skip
CHANNELS = f"Sec-WebSocket-Protocol: {STREAM_PROTOCOL}"


def asked(url: str, *fields: str, early: bytes = b"") -> socket.socket:
    """Send a GET request for a URL with these header fields; return the connection."""
    target = parse_url(url)
    head = [f"GET {target.path} HTTP/1.1", f"Host: {target.host}:{target.port}", *fields, "", ""]
    sock = socket.create_connection((target.host, target.port), 5)
    sock.sendall("\r\n".join(head).encode() + early)
    return sock


def stream(url: str) -> SocketLink:
    return open_link(parse_url(url), STREAM_PROTOCOL, label="the server", timeout_s=5, idle_s=5)


def finish(connection: SocketLink) -> Outcome:
    connection.send(CHANNEL_END, bytes((TO_CONTAINER,)))
    return outcome_of(connection)


def outcome_of(connection: SocketLink) -> Outcome:
    while piece := connection.receive():
        if piece.channel == STATUS:
            return decode(bytes(piece.data))
    raise AssertionError("no outcome")
