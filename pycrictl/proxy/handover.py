"""The conversation of two programs while one takes over from the other.

The new program connects to the old one's admin socket. One JSON object a line, both ways::

    new: {"call": "take-over"}
    old: {"pid": 7, "folders": ["cri.sock.k3x_9a2b", …], "streams": "IP:PORT"}
    new: {"socket": "/run/…", "port": true}   it serves there; whether it wants the streams' port
    old: {"running": […], "waiting": 3}    it gives no more slots, and has left the port
    new: {"serving": true}                 clients find it now
    old: {}                                its line is on its way over
    old: {"ended": 7, "error": "…"}        for each of the running pulls; null: given up
    old: closes the connection when it has finished all calls that it holds

Until "serving" the new program may fail at any step, which closes the connection; the old one goes
on as if nothing had been.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pycrictl.errors import ConnectError, RemoteProtocolError
from pycrictl.foreign import parse
from pycrictl.proxy.replacement import READY_S
from pycrictl.units import quote

STEP_S: Final = 10.0

_LINE_BYTES: Final = 64 * 1024 * 1024

OnEnd = Callable[[int, str | None], None]
"""Takes the number of a pull that is over, and why it failed; empty if not, None if given up."""


class MessageLines:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @property
    def peer_pid(self) -> int:
        sock = self._writer.get_extra_info("socket")
        found: bytes = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4)
        return int.from_bytes(found, sys.byteorder)

    def send(self, message: Mapping[str, Any]) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def receive(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Return the next message; None if the peer is gone, silent or broken."""
        try:
            async with asyncio.timeout(timeout_s):
                message = parse(await self._reader.readline())
        except (OSError, ValueError):
            return None
        return message if isinstance(message, dict) else None

    def close(self) -> None:
        self._writer.close()


class Successor:
    def __init__(self, lines: MessageLines, ready: Mapping[str, Any]) -> None:
        self._lines = lines
        self.pid = lines.peer_pid
        self.socket = str(ready["socket"])
        self.wants_port = bool(ready["port"])

    @classmethod
    async def offered(
        cls, lines: MessageLines, folders: Sequence[str], streams: str
    ) -> Successor | None:
        """Offer everything to a program that has connected; None if it does not become ready."""
        lines.send({"pid": os.getpid(), "folders": folders, "streams": streams})
        ready = await lines.receive(READY_S)
        with contextlib.suppress(KeyError, OSError):
            if ready is not None:
                return cls(lines, ready)
        lines.close()
        return None

    async def serves(self, state: Mapping[str, Any]) -> bool:
        """Hand over ``state``, and return whether the new program serves now."""
        self._lines.send(state)
        answer = await self._lines.receive(STEP_S)
        return answer is not None and bool(answer.get("serving"))

    def confirm(self) -> None:
        self._lines.send({})

    def refuse(self, why: str) -> None:
        self._lines.send({"error": why})
        self.close()

    def ended(self, pull: int, error: str | None) -> None:
        self._lines.send({"ended": pull, "error": error})

    def close(self) -> None:
        self._lines.close()


class Predecessor:
    def __init__(self, sock: socket.socket, offer: Mapping[str, Any]) -> None:
        self._sock = sock
        self._lines: MessageLines | None = None
        self.pid = int(offer["pid"])
        self.folders = frozenset(map(str, offer["folders"]))
        self.streams = str(offer["streams"])

    @classmethod
    def reach(cls, path: str) -> Predecessor | None:
        """Connect to the program behind an admin socket; None if nobody listens there."""
        where = f"the proxy's admin socket {quote('unix://' + path)}"
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(STEP_S)
            try:
                sock.connect(path)
            except (FileNotFoundError, ConnectionRefusedError):
                sock.close()
                return None
            sock.sendall(b'{"call": "take-over"}\n')
            with sock.makefile("rb") as stream:
                data = stream.readline(_LINE_BYTES)
        except OSError as exc:
            raise ConnectError(f"cannot reach {where}: {exc.strerror or exc}".lower()) from None
        try:
            offer = parse(data)
            if "error" in offer:
                raise RemoteProtocolError(f"{where} refuses: {offer['error']}")
            return cls(sock, offer)
        except (ValueError, KeyError, TypeError):
            raise RemoteProtocolError(f"{where} does not hand over as this program does") from None

    async def take(self, own: str, *, port: bool) -> dict[str, Any]:
        """Say that this program listens at ``own``; return the state of the old one, which waits.

        Args:
            port: whether the old one is to leave the port of its streams.
        """
        self._sock.setblocking(False)
        opened = await asyncio.open_unix_connection(sock=self._sock, limit=_LINE_BYTES)
        self._lines = MessageLines(*opened)
        self._lines.send({"socket": own, "port": port})
        state = await self._lines.receive(STEP_S)
        if state is None:
            raise RemoteProtocolError("the proxy that was to hand over has ended")
        return state

    async def serving(self, on_end: OnEnd) -> None:
        """Say that this program serves now, and return when the old one has confirmed it."""
        assert self._lines is not None
        self._lines.send({"serving": True})
        while (answer := await self._lines.receive(STEP_S)) is not None:
            if "ended" not in answer:
                break
            _report(answer, on_end)
        if answer is not None and "error" in answer:
            raise RemoteProtocolError(f"the proxy does not hand over: {answer['error']}")

    async def follow(self, on_end: OnEnd) -> None:
        """Report the ends of its pulls until it ends itself."""
        assert self._lines is not None
        with contextlib.suppress(KeyError, TypeError, ValueError):
            while (message := await self._lines.receive()) is not None:
                _report(message, on_end)
        self._lines.close()


def _report(message: Mapping[str, Any], on_end: OnEnd) -> None:
    error = message["error"]
    on_end(int(message["ended"]), None if error is None else str(error))
