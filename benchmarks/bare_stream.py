"""Yardstick for streams: minimal Python that moves the load of ``session_server``.

python benchmarks/bare_stream.py PORT spdy|websocket stdout, or spdy stdin

It upgrades the connection and opens the streams. After that it ignores framing: it reads into one
buffer and discards the data, or copies its standard input to the socket.
"""

from __future__ import annotations

import os
import socket
import sys

from tests.streams.wire.spdyframes import Data, FrameEncoder, SynStream

BUFFER_BYTES = 256 << 10
WEBSOCKET = """\
GET /exec/{load} HTTP/1.1\r
Host: 127.0.0.1\r
Connection: Upgrade\r
Upgrade: websocket\r
Sec-WebSocket-Version: 13\r
Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r
Sec-WebSocket-Protocol: v4.channel.k8s.io\r
\r
"""
SPDY = """\
POST /exec/{load} HTTP/1.1\r
Host: 127.0.0.1\r
Connection: Upgrade\r
Upgrade: SPDY/3.1\r
X-Stream-Protocol-Version: v4.channel.k8s.io\r
\r
"""


def main() -> None:
    port, transport, load = sys.argv[1:]
    encoder = FrameEncoder()
    names = ["error", "stdin", "stdout", "stderr"] if load == "stdin" else None
    opening = [
        encoder.encode(SynStream(2 * index + 1, (("streamtype", name),)))
        for index, name in enumerate(names or ["error", "stdout", "stderr"])
    ]
    with socket.create_connection(("127.0.0.1", int(port))) as connection:
        request = SPDY if transport == "spdy" else WEBSOCKET
        connection.sendall(request.format(load=load).encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(BUFFER_BYTES)
        if transport == "spdy":
            connection.sendall(b"".join(opening))
        buffer = bytearray(BUFFER_BYTES)
        view = memoryview(buffer)
        if load == "stdin":
            while size := os.readv(0, [buffer]):
                connection.sendall(view[:size])
            connection.sendall(encoder.encode(Data(3, b"", is_last=True)))
        while connection.recv_into(buffer):
            pass


if __name__ == "__main__":
    main()
