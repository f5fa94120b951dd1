"""Yardstick for copies by the runtime's calls: a file sent between two processes by websockets.

python benchmarks/bare_copy.py out|in SOURCE TARGET

As CopyFromContainer and CopyToContainer require, the sender reads the file once for its checksum
and once for its content, and the receiver checks it. ``out``: the server sends; ``in``: the client
does, whose messages are masked.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from websockets.sync.client import unix_connect
from websockets.sync.connection import Connection
from websockets.sync.server import unix_serve

from pycrictl.copy.archive.pack import crc32

PIECE_BYTES = 1 << 20


def pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


def send(stream: Connection, source: Path) -> None:
    checksum = 0
    for piece in pieces(source):
        checksum = crc32(piece, checksum)
    stream.send(str(checksum))
    for piece in pieces(source):
        stream.send(piece)
    stream.send("end")
    stream.recv()


def receive(stream: Connection, target: Path) -> None:
    announced, checksum = stream.recv(), 0
    with target.open("wb", buffering=0) as file:
        while isinstance(piece := stream.recv(), bytes):
            checksum = crc32(piece, checksum)
            file.write(piece)
    if announced != str(checksum):
        sys.exit("the file was damaged")
    stream.send("received")


def main(direction: str, source: str, target: str) -> None:
    def sends(stream: Connection) -> None:
        send(stream, Path(source))

    def receives(stream: Connection) -> None:
        receive(stream, Path(target))

    serve, ask = (sends, receives) if direction == "out" else (receives, sends)
    with tempfile.TemporaryDirectory() as folder:
        socket = str(Path(folder, "s"))
        server = unix_serve(serve, socket, compression=None, max_size=None)
        child = os.fork()
        if not child:
            server.serve_forever()
        try:
            with unix_connect(socket, compression=None, max_size=None) as stream:
                ask(stream)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
