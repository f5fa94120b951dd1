"""The conversation of two programs while one takes over from the other.

The new program connects to the old one's admin socket. One JSON object a line, both ways::

    new: {"call": "take-over"}
    old: {"pid": 7, "folders": ["cri.sock.k3x_9a2b", …], "streams": "127.0.0.1:1234"}
         with the descriptors of the stream server's socket, and of one over which connections to
         that go back whose tokens only the old program knows
    new: {"socket": "/run/…", "streams": true}    it serves there; whether it takes the streams
    old: {"running": […], "waiting": 3}    it gives no more slots
    new: {"serving": true}                 clients find it now
    old: {}                                its line is on its way over
    old: {"ended": 7, "error": "…"}        for each of the running pulls; null: given up
    new: {}                                at any time: which copies go on?
    old: {"copies": […]}
    old: closes the connection when it has finished all calls that it holds

Until "serving" the new program may fail at any step, which closes the connection; the old one goes
on as if nothing had been.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from pycrictl.errors import ConnectError, RemoteProtocolError
from pycrictl.foreign import parse
from pycrictl.proxy.replacement import READY_S
from pycrictl.units import quote

STEP_S: Final = 10.0

COPIES_S: Final = 1.0
"""How long the old program may take to say which copies go on in it."""

_LINE_BYTES: Final = 64 * 1024 * 1024
_HEAD_BYTES: Final = 1024 * 1024


class _Lines:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, sock: socket.socket) -> _Lines:
        sock.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=sock, limit=_LINE_BYTES))

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
    """The new program, as the old one knows it.

    Attributes:
        socket: the path of its own socket.
        has_streams: it accepts the connections to the streams, from now on.
    """

    def __init__(
        self, lines: _Lines, pid: int, ready: Mapping[str, Any], channel: socket.socket
    ) -> None:
        self._lines = lines
        self._channel = channel
        self.pid = pid
        self.socket = str(ready["socket"])
        self.has_streams = bool(ready["streams"])

    @classmethod
    async def offered(
        cls, sock: socket.socket, folders: Sequence[str], streams: tuple[str, socket.socket]
    ) -> Successor | None:
        """Offer everything to a program that has connected; None if it does not become ready."""
        document = {"pid": os.getpid(), "folders": folders, "streams": streams[0]}
        channel, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel.setblocking(False)
        offer = json.dumps(document).encode() + b"\n"
        sock.setblocking(False)
        try:
            socket.send_fds(sock, [offer], [streams[1].fileno(), far_end.fileno()])
        except OSError:
            sock.close()
            channel.close()
            return None
        finally:
            far_end.close()
        pid = _peer_pid(sock)
        lines = await _Lines.over(sock)
        ready = await lines.receive(READY_S)
        with contextlib.suppress(KeyError, TypeError):
            if ready is not None:
                return cls(lines, pid, ready, channel)
        channel.close()
        lines.close()
        return None

    def take_back_streams(self, bring_in: Callable[[socket.socket, bytes], None]) -> None:
        loop, channel = asyncio.get_running_loop(), self._channel

        def receive() -> None:
            try:
                data, descriptors = _receive(channel, _HEAD_BYTES, 1)
            except BlockingIOError:
                return
            except OSError:
                data, descriptors = b"", []
            if not data:
                loop.remove_reader(channel)
            for descriptor in descriptors:
                bring_in(socket.socket(fileno=descriptor), data)

        loop.add_reader(channel, receive)

    async def serves(self, state: Mapping[str, Any]) -> bool:
        """Hand over ``state``, and return whether the new program serves now."""
        self._lines.send(state)
        answer = await self._lines.receive(STEP_S)
        return answer is not None and bool(answer.get("serving"))

    def confirm(self) -> None:
        self._lines.send({})

    def refuse(self) -> None:
        self._lines.send({"error": "it took too long"})
        self.close()

    def ended(self, pull: int, error: str | None) -> None:
        """Report the end of a pull: why it failed, empty if it did not, None if it was given up."""
        self._lines.send({"ended": pull, "error": error})

    async def answer(self, copies: Callable[[], Awaitable[list[dict[str, Any]]]]) -> None:
        """Report which copies go on here, as often as the new program asks."""
        while await self._lines.receive() is not None:
            self._lines.send({"copies": await copies()})

    def close(self) -> None:
        self._lines.close()
        asyncio.get_running_loop().remove_reader(self._channel)
        self._channel.close()


class Predecessor:
    """The old program, as the new one knows it.

    Attributes:
        folders: the directories of its sockets.
        streams: the address and the socket of its stream server.
        channel: takes connections to that whose tokens are its own.
    """

    def __init__(self, sock: socket.socket, offer: Mapping[str, Any], descriptors: list[int]):
        self._sock = sock
        self._lines: _Lines | None = None
        self._copies: asyncio.Future[list[dict[str, Any]]] | None = None
        self.pid = int(offer["pid"])
        self.folders = frozenset(map(str, offer["folders"]))
        listener, channel = descriptors
        self.streams = (str(offer["streams"]), socket.socket(fileno=listener))
        self.channel = socket.socket(fileno=channel)
        self.channel.setblocking(False)

    @classmethod
    def reach(cls, path: str) -> Predecessor | None:
        """Connect to the program behind an admin socket; None if nobody listens there.

        Raises:
            ConnectError: it does not answer.
            RemoteProtocolError: it does not hand over, or not in this way.
        """
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
            data, descriptors = b"", []
            while not data.endswith(b"\n"):
                piece, found = _receive(sock, 65536, 16)
                descriptors += found
                data += piece
                if not piece:
                    break
        except OSError as exc:
            raise ConnectError(f"cannot reach {where}: {exc.strerror or exc}".lower()) from None
        try:
            offer = parse(data)
            if "error" in offer:
                raise RemoteProtocolError(f"{where} refuses: {offer['error']}")
            return cls(sock, offer, descriptors)
        except (ValueError, KeyError, TypeError):
            for descriptor in descriptors:
                os.close(descriptor)
            raise RemoteProtocolError(f"{where} does not hand over as this program does") from None

    async def take(self, own: str, *, streams: bool) -> dict[str, Any]:
        """Say that this program listens at ``own``; return the state of the old one, which waits.

        Args:
            streams: whether it takes the stream server's socket.
        """
        if not streams:
            self.streams[1].close()
        lines = self._lines = await _Lines.over(self._sock)
        lines.send({"socket": own, "streams": streams})
        state = await lines.receive(STEP_S)
        if state is None:
            raise RemoteProtocolError("the proxy that was to hand over has ended")
        return state

    async def serving(self) -> None:
        """Say that this program serves now, and return when the old one has confirmed it."""
        assert self._lines is not None
        self._lines.send({"serving": True})
        answer = await self._lines.receive(STEP_S)
        if answer is not None and "error" in answer:
            raise RemoteProtocolError(f"the proxy does not hand over: {answer['error']}")

    async def copies(self) -> list[dict[str, Any]]:
        """Return the copies that go on in the old program; none if it does not answer."""
        if self._lines is None:
            return []
        if self._copies is None or self._copies.done():
            self._copies = asyncio.get_running_loop().create_future()
            self._lines.send({})
        try:
            async with asyncio.timeout(COPIES_S):
                return await asyncio.shield(self._copies)
        except TimeoutError:
            return []

    async def follow(self, on_end: Callable[[int, str | None], None]) -> None:
        assert self._lines is not None
        with contextlib.suppress(KeyError, TypeError, ValueError):
            while (message := await self._lines.receive()) is not None:
                if "copies" in message:
                    if self._copies is not None and not self._copies.done():
                        self._copies.set_result(list(message["copies"]))
                    continue
                error = message["error"]
                on_end(int(message["ended"]), None if error is None else str(error))
        self._lines.close()
        self.channel.close()


def _receive(sock: socket.socket, count: int, most: int) -> tuple[bytes, list[int]]:
    """Receive data and descriptors, which no program that is started here inherits.

    ``socket.recv_fds`` drops the flag for that.
    """
    descriptors = array.array("i")
    room = socket.CMSG_LEN(most * descriptors.itemsize)
    data, messages, _, _ = sock.recvmsg(count, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in messages:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            whole = len(content) - len(content) % descriptors.itemsize
            descriptors.frombytes(content[:whole])
    return data, list(descriptors)


def refuse(sock: socket.socket, why: str) -> None:
    with contextlib.suppress(OSError):
        sock.send(json.dumps({"error": why}).encode() + b"\n")
    sock.close()


def _peer_pid(sock: socket.socket) -> int:
    return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4), sys.byteorder)
