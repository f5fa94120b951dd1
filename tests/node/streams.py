"""A small blocking driver for the streaming cores, apart from the client's own shell."""

from __future__ import annotations

import base64
import select
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pycrictl._proto import cri_pb2
from pycrictl.streaming.opening import Opening
from pycrictl.streaming.target import parse_url
from pycrictl.wire.command import (
    SPDY_PROTOCOLS,
    ExitReported,
    Ready,
    RemoteCommand,
    StderrReceived,
    StdoutReceived,
    Streams,
    remote_command,
)
from pycrictl.wire.portforward import SPDY_PROTOCOL, PortForward, port_forward

from .kubelet import RUNTIME, Kubelet, Pod

PIECE_BYTES = 65536
TIMEOUT_S = 20.0


@dataclass
class Trace:
    """What went over a connection after its upgrade, from the client (c) and the server (s)."""

    pieces: list[tuple[str, bytes | memoryview]] = field(default_factory=list)

    def dump(self) -> list[tuple[str, str]]:
        return [(side, base64.b64encode(data).decode()) for side, data in self.pieces]


class Driver:
    """Moves bytes between a socket and a core until the core is over."""

    def __init__(self, url: str, protocols: Sequence[str], trace: Trace | None = None) -> None:
        self.trace = trace or Trace()
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=TIMEOUT_S)
        versions = [("X-Stream-Protocol-Version", protocol) for protocol in protocols]
        upgrade = [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1"), *versions]
        opening = Opening(parse_url(url), "POST", upgrade)
        self._socket.sendall(opening.request)
        while not opening.is_complete():
            opening.receive(self._socket.recv(PIECE_BYTES))
        head = opening.response
        assert head is not None
        assert head.status == 101, head
        self.protocol = head.headers.get("X-Stream-Protocol-Version") or ""
        self._leftover = opening.leftover
        self._socket.setblocking(False)

    def run(
        self,
        core: RemoteCommand | PortForward,
        handle: Callable[[object], None],
        more: Callable[[], None] = lambda: None,
    ) -> None:
        """Give each event to ``handle``; call ``more`` whenever there is nothing to send."""
        output = bytearray()
        received = self._leftover
        with self._socket:
            while True:
                if received:
                    self.trace.pieces.append(("s", received))
                    core.receive_data(received)
                for event in core.events_received():
                    handle(event)
                if core.is_over:
                    self._read_rest()
                    break
                if not output:
                    more()
                for piece in core.data_to_send():
                    self.trace.pieces.append(("c", piece))
                    output += piece
                received = self._move(output, core)

    def _read_rest(self) -> None:
        self._socket.settimeout(1)
        with suppress(OSError):
            while data := self._socket.recv(PIECE_BYTES):
                self.trace.pieces.append(("s", data))

    def _move(self, output: bytearray, core: RemoteCommand | PortForward) -> bytes:
        wants_write = [self._socket] if output else []
        readable, writable, _ = select.select([self._socket], wants_write, [], TIMEOUT_S)
        assert readable or writable, "nothing happened"
        if writable:
            try:
                del output[: self._socket.send(output[:PIECE_BYTES])]
            except ConnectionError:
                output.clear()  # what the peer has said before can still be read
        if not readable:
            return b""
        try:
            data = self._socket.recv(PIECE_BYTES)
        except ConnectionError:
            data = b""  # the peer closed with something of ours unread
        if not data:
            core.receive_eof()
        return data


@dataclass
class Outcome:
    """What came of a command."""

    stdout: bytes = b""
    stderr: bytes = b""
    exit: ExitReported | None = None
    events: list[object] = field(default_factory=list)


def run_command(
    kubelet: Kubelet,
    container_id: str,
    command: Sequence[str],
    *,
    stdin: bytes | None = None,
    size: tuple[int, int] | None = None,
    trace: Trace | None = None,
) -> Outcome:
    """Run a command over SPDY, with a terminal of ``size`` (width, height) if given."""
    streams = Streams(stdin=stdin is not None, stderr=size is None, tty=size is not None)
    answer = kubelet.call(
        RUNTIME + "Exec",
        cri_pb2.ExecRequest(
            container_id=container_id,
            cmd=command,
            tty=streams.tty,
            stdin=streams.stdin,
            stdout=streams.stdout,
            stderr=streams.stderr,
        ),
        cri_pb2.ExecResponse,
    )
    driver = Driver(answer.url, SPDY_PROTOCOLS, trace)
    core = remote_command("spdy", driver.protocol, streams)
    outcome = Outcome()
    stdout, stderr = bytearray(), bytearray()
    rest = bytearray(stdin or b"")
    state = "waiting"

    def handle(event: object) -> None:
        nonlocal state
        outcome.events.append(event)
        match event:
            case Ready():
                state = "sending" if stdin is not None else "sent"
                if size is not None:
                    core.resize(width=size[0], height=size[1])
            case StdoutReceived():
                stdout.extend(event.data)
            case StderrReceived():
                stderr.extend(event.data)
            case ExitReported():
                outcome.exit = event

    def more() -> None:
        nonlocal state
        if state == "sending":
            core.send_stdin(bytes(rest[:PIECE_BYTES]))
            del rest[:PIECE_BYTES]
            if not rest:
                state = "sent"
                if size is None:
                    core.end_stdin()

    driver.run(core, handle, more)
    assert core.error is None, core.error
    outcome.stdout, outcome.stderr = bytes(stdout), bytes(stderr)
    return outcome


def open_forward(
    kubelet: Kubelet, pod: Pod, port: int, trace: Trace | None = None
) -> tuple[Driver, PortForward]:
    """Open a connection to a port of a pod."""
    answer = kubelet.call(
        RUNTIME + "PortForward",
        cri_pb2.PortForwardRequest(pod_sandbox_id=pod.id),
        cri_pb2.PortForwardResponse,
    )
    return Driver(answer.url, [SPDY_PROTOCOL], trace), port_forward("spdy", port)
