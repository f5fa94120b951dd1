"""Stream server whose commands move a fixed load, so that only the client's time varies.

The command's name selects the load: true, stdout or stdin. Like a runtime, the server sends output
in frames of 32 KiB, one system call each.
"""

from __future__ import annotations

import base64
import hashlib
import queue
import socket
import struct
import threading
import time
from typing import Final

from tests.streams.wire.spdyframes import Data, FrameDecoder, FrameEncoder, SynReply, SynStream

LOAD_BYTES: Final = 200 << 20
FRAME_BYTES: Final = 32 << 10
STATUS: Final = b'{"metadata":{},"status":"Success"}'
SPDY_STREAMS: Final = {"true": 3, "stdout": 3, "stdin": 4}

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_READ_BYTES: Final = 1 << 20


class _Stream:
    """One connection, from its upgrade until the client closes it."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._received = b""

    def serve(self) -> float | None:
        """Return the bytes per second of the load; None if there was no load."""
        connection = self._socket
        while b"\r\n\r\n" not in self._received:
            self._receive()
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        load = head.split(b" ", 2)[1].decode().rpartition("/")[2]
        begin = self._begin_websocket if b"Sec-WebSocket-Key" in head else self._begin_spdy
        frame, end, last = begin(head, load)
        if load == "stdin":
            start, taken_bytes = self._take(last)
            if taken_bytes < LOAD_BYTES - _READ_BYTES:  # the last reply may cross the first data
                raise ConnectionError
            seconds = time.perf_counter() - start
            connection.sendall(end)
        else:
            start = time.perf_counter()
            for _ in range(LOAD_BYTES // FRAME_BYTES if load == "stdout" else 0):
                connection.sendall(frame)
            connection.sendall(end)
        connection.shutdown(socket.SHUT_WR)
        try:
            while connection.recv(_READ_BYTES):
                pass
        except ConnectionError:
            pass  # the client closed before it had read everything
        if load == "stdout":
            seconds = time.perf_counter() - start
        return None if load == "true" else LOAD_BYTES / seconds

    def _begin_websocket(self, head: bytes, _: str) -> tuple[bytes, bytes, bytes]:
        fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
        digest = hashlib.sha1(fields[b"Sec-WebSocket-Key"] + _GUID, usedforsecurity=False).digest()
        self._socket.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: %b\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n"
            b"\x82\x01\x01" % base64.b64encode(digest)
        )
        frame = struct.pack(">BBHB", 0x82, 126, FRAME_BYTES + 1, 1) + bytes(FRAME_BYTES)
        end = struct.pack(">BBB", 0x82, len(STATUS) + 1, 3) + STATUS + b"\x88\x02\x03\xe8"
        return frame, end, b""

    def _begin_spdy(self, head: bytes, load: str) -> tuple[bytes, bytes, bytes]:
        self._socket.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\nConnection: Upgrade\r\n"
            b"X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n"
        )
        decoder, encoder = FrameDecoder(), FrameEncoder()
        streams: dict[str, int] = {}
        while True:
            for opened in decoder.receive_data(self._received):
                if isinstance(opened, SynStream):
                    streams[dict(opened.headers)["streamtype"]] = opened.stream_id
                    self._socket.sendall(encoder.encode(SynReply(opened.stream_id)))
            self._received = b""
            if len(streams) == SPDY_STREAMS[load]:
                break
            self._receive()
        frame = encoder.encode(Data(streams["stdout"], bytes(FRAME_BYTES)))
        ends = [Data(streams[name], b"", is_last=True) for name in ("stdout", "stderr")]
        ends += [Data(streams["error"], STATUS), Data(streams["error"], b"", is_last=True)]
        last = Data(streams.get("stdin", 1), b"", is_last=True)
        return frame, b"".join(map(encoder.encode, ends)), encoder.encode(last)

    def _receive(self) -> None:
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise ConnectionError
        self._received += data

    def _take(self, last: bytes) -> tuple[float, int]:
        """Read and discard the client's load; return when it began and its size.

        The load is all zeros, so its end is unambiguous.
        """
        buffer = bytearray(_READ_BYTES)
        view = memoryview(buffer)
        tail = b""
        start, taken_bytes = 0.0, 0
        while not tail.endswith(last):
            size = self._socket.recv_into(buffer)
            if not size:
                raise ConnectionError
            start = start or time.perf_counter()
            taken_bytes += size
            tail = (tail + bytes(view[max(0, size - 16) : size]))[-16:]
        return start, taken_bytes


class LoadServer:
    """Listens at ``port``; ``moved`` receives the bytes per second of each load, 0 if cut short."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.moved: queue.Queue[float] = queue.Queue()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                speed = _Stream(connection).serve()
            except ConnectionError:
                speed = 0.0
        if speed is not None:
            self.moved.put(speed)
