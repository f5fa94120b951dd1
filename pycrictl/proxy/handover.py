"""The hand-over: how a running proxy gives everything to a new program, and no call notices.

The new program connects to the old one's admin socket. One JSON object a line, both ways::

    new: {"call": "take-over"}
    old: {"pid": 7, "sockets": [{"path": "/run/…", "locked": true}, …], "salt": "…",
          "streams": "127.0.0.1:1234"}
         with the descriptors of the sockets and their locks, of the stream server's socket, and of
         one over which connections to that go back whose tokens only the old program knows
    new: {"listen": "/run/…", "taken": ["/run/…", …]}    it is ready: only accepting is left to do
    old: {"running": […], "waiting": 3}                  it accepts no more clients
    new: {"serving": true}                               it accepts them
    old: {}                                              its last clients are on their way over
    old: {"ended": 7, "answer": {…}}                     for each of the running pulls
    new: {}                                              at any time: which copies go on?
    old: {"copies": […]}
    old: closes the connection when it has finished all calls that it holds

Until "serving" the new program may fail at any step, which closes the connection; the old one goes
on as if nothing had been. Clients that come in between wait in the sockets' backlog.

There is one line for slots, the new program's. The old one goes on with the pulls that run, which
the new one counts, and makes the calls of its line anew to the new one, with their time of arrival.
So a third program can follow while the first has not ended.
"""

from __future__ import annotations

import array
import asyncio
import base64
import contextlib
import json
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from pycrictl.errors import ConnectError, RemoteProtocolError
from pycrictl.proxy.program import READY_S
from pycrictl.proxy.relay.calls import Answer
from pycrictl.proxy.serve.listen import Inherited, UnixListener
from pycrictl.units import quote

STEP_S: Final = 10.0

COPIES_S: Final = 1.0
"""How long the old program may take to say which copies go on in it."""

_LINE_BYTES: Final = 64 * 1024 * 1024
_MAX_DESCRIPTORS: Final = 16
_HEAD_BYTES: Final = 1024 * 1024


class _Lines:
    """JSON objects, one a line, over a connected socket."""

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
                message = json.loads(await self._reader.readline())
        except (OSError, ValueError, RecursionError):
            return None
        return message if isinstance(message, dict) else None

    def close(self) -> None:
        self._writer.close()


class Successor:
    """The new program, as the old one knows it.

    Attributes:
        pid: its process.
        listen: the path of its socket.
        taken: the paths of the sockets that it uses.
    """

    def __init__(self, lines: _Lines, pid: int, ready: Mapping[str, Any]) -> None:
        self._lines = lines
        self.pid = pid
        self.listen = str(ready["listen"])
        self.taken = set(ready["taken"])
        self.channel: socket.socket | None = None

    @classmethod
    async def offered(
        cls,
        sock: socket.socket,
        listeners: Sequence[UnixListener],
        streams: tuple[str, socket.socket],
        salt: bytes,
    ) -> Successor | None:
        """Offer everything to a program that has connected; None if it does not become ready."""
        sockets = []
        descriptors: list[int] = []
        for listener in listeners:
            mine = listener.descriptors()
            sockets.append({"path": str(listener.path), "locked": len(mine) > 1})
            descriptors += mine
        document = {"pid": os.getpid(), "sockets": sockets, "salt": salt.hex()}
        channel, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel.setblocking(False)
        document["streams"] = streams[0]
        descriptors += [streams[1].fileno(), far_end.fileno()]
        offer = json.dumps(document).encode() + b"\n"
        sock.setblocking(False)
        try:
            socket.send_fds(sock, [offer], descriptors)
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
                successor = cls(lines, pid, ready)
                successor.channel = channel
                return successor
        channel.close()
        lines.close()
        return None

    def take_back_streams(self, bring_in: Callable[[socket.socket, bytes], None]) -> None:
        """Take the connections that are for streams of this program, from now on."""
        loop, channel = asyncio.get_running_loop(), self.channel
        assert channel is not None

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
        """Say that the hand-over is complete."""
        self._lines.send({})

    def ended(self, pull: int, answer: Answer | None) -> None:
        """Say how a pull ended; None if it was given up."""
        document = None
        if answer is not None:
            document = {
                "code": answer.code,
                "message": answer.message,
                "response": base64.b64encode(answer.response or b"").decode(),
            }
        self._lines.send({"ended": pull, "answer": document})

    async def answer(self, copies: Callable[[], Awaitable[list[dict[str, Any]]]]) -> None:
        """Say which copies go on here, as often as the new program asks."""
        while await self._lines.receive() is not None:
            self._lines.send({"copies": await copies()})

    def close(self) -> None:
        """End the connection."""
        self._lines.close()
        if self.channel is not None:
            asyncio.get_running_loop().remove_reader(self.channel)
            self.channel.close()


class Predecessor:
    """The old program, as the new one knows it.

    Attributes:
        sockets: what it hands over, by path.
        streams: the address and the socket of its stream server.
        channel: takes connections to that whose tokens are its own.
        salt: see ``PullLimiter``.
        pid: its process.
    """

    def __init__(self, sock: socket.socket, offer: Mapping[str, Any], descriptors: list[int]):
        self._sock = sock
        self._lines: _Lines | None = None
        self._copies: asyncio.Future[list[dict[str, Any]]] | None = None
        self.salt = bytes.fromhex(offer["salt"])
        self.sockets: dict[str, Inherited] = {}
        self.pid = int(offer["pid"])
        left = iter(descriptors)
        for entry in offer["sockets"]:
            listener = socket.socket(fileno=next(left))
            self.sockets[entry["path"]] = Inherited(
                listener, next(left) if entry["locked"] else None
            )
        self.streams = (str(offer["streams"]), socket.socket(fileno=next(left)))
        self.channel = socket.socket(fileno=next(left))
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
                piece, found = _receive(sock, 65536, _MAX_DESCRIPTORS)
                descriptors += found
                data += piece
                if not piece:
                    break
        except OSError as exc:
            raise ConnectError(f"cannot reach {where}: {exc.strerror or exc}".lower()) from None
        try:
            offer = json.loads(data)
            if "error" in offer:
                raise RemoteProtocolError(f"{where} refuses: {offer['error']}")
            return cls(sock, offer, descriptors)
        except (ValueError, KeyError, TypeError, StopIteration):
            raise RemoteProtocolError(f"{where} does not hand over as this program does") from None

    async def take(self, listen: str, taken: Sequence[str]) -> dict[str, Any]:
        """Say that everything is ready, and return the state of the old program, which waits.

        Raises:
            RemoteProtocolError: it has ended.
        """
        for path in self.sockets.keys() - set(taken):
            listener, lock = self.sockets.pop(path)
            listener.close()
            if lock is not None:
                os.close(lock)
        lines = self._lines = await _Lines.over(self._sock)
        lines.send({"listen": listen, "taken": list(taken)})
        state = await lines.receive(STEP_S)
        if state is None:
            raise RemoteProtocolError("the proxy that was to hand over has ended")
        return state

    async def serving(self) -> None:
        """Say that this program serves now, and return when the old one knows."""
        assert self._lines is not None
        self._lines.send({"serving": True})
        await self._lines.receive(STEP_S)

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

    async def follow(self, on_end: Callable[[int, Answer | None], None]) -> None:
        """Pass on the ends of the old program's pulls until it has ended itself."""
        assert self._lines is not None
        with contextlib.suppress(KeyError, TypeError, ValueError):
            while (message := await self._lines.receive()) is not None:
                if "copies" in message:
                    if self._copies is not None and not self._copies.done():
                        self._copies.set_result(list(message["copies"]))
                    continue
                found = message["answer"]
                on_end(
                    int(message["ended"]),
                    None
                    if found is None
                    else Answer(
                        int(found["code"]),
                        str(found["message"]),
                        base64.b64decode(found["response"]),
                    ),
                )
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
    """Refuse to hand over to a program that has connected."""
    with contextlib.suppress(OSError):
        sock.send(json.dumps({"error": why}).encode() + b"\n")
    sock.close()


def _peer_pid(sock: socket.socket) -> int:
    return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4), sys.byteorder)
