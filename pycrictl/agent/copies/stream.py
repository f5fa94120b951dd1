"""The bytes of a copy over a WebSocket, in pieces; see ``copy.archive.pieces``."""

from __future__ import annotations

import asyncio
import json
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

from aiohttp import web

from pycrictl.agent.api.names import COPIES
from pycrictl.agent.copies import work
from pycrictl.agent.copies.connection import Connection, Unread, Upgraded, accept
from pycrictl.agent.copies.job import Copy
from pycrictl.agent.copies.refusals import Refused, refused
from pycrictl.agent.copies.service import Copies
from pycrictl.agent.copies.session import CopyPhase, Direction
from pycrictl.copy.archive.pack import PIECE_BYTES
from pycrictl.copy.archive.pieces import (
    ACKNOWLEDGEMENT,
    END,
    HEAD,
    PIECE,
    REFUSAL,
    decode_acknowledgement,
    encode_acknowledgement,
    head_of,
)
from pycrictl.errors import PycrictlError, RemoteProtocolError

_PAUSE_S: Final = 0.2
"""Between two acknowledgements at least."""

_SIGN_S: Final = 10.0
"""How long a client hears nothing; it gives up after three times as long."""


def wants_stream(request: web.BaseRequest) -> bool:
    """Return whether a request asks for an upgrade."""
    return "upgrade" in request.headers.get("Connection", "").lower()


async def serve(
    request: web.BaseRequest, copies: Copies, copy: Copy, offset: int
) -> web.StreamResponse:
    """Send or receive the archive of a copy, as far as the connection lasts.

    Args:
        request: of the upgrade.
        copies: has the copy.
        copy: can go on.
        offset: from where on the client wants what comes from a container.

    Raises:
        Refused: the copy is not in the phase for it, or this is not an upgrade.
    """
    session = copy.session
    if session.phase is CopyPhase.FAILED:  # a moment ago
        raise Refused(session.lasting_code, session.message)
    if session.phase not in (CopyPhase.MEASURING, CopyPhase.TRANSFERRING):
        raise Refused(409, f"the copy is {session.phase.value.lower()}: no bytes are wanted")
    if session.phase is CopyPhase.TRANSFERRING and offset > session.size_bytes:
        raise Refused(422, f"the archive has {session.size_bytes} bytes")
    task = asyncio.current_task()
    assert task is not None
    await copies.attach(copy, task)
    try:
        connection = accept(request)
    except Unread:
        return Upgraded()
    try:
        if session.spec.direction is Direction.TO:
            await _receive(connection, copies, copy)
        else:
            await _send(connection, copies, copy, offset)
    except asyncio.CancelledError:
        if request.transport is not None:
            request.transport.abort()  # another connection waits for the end of this one
        raise
    except (Unread, RemoteProtocolError):
        pass  # it goes on with another connection
    except (PycrictlError, Refused) as exc:
        with suppress(Unread):
            await _refuse(connection, refused(exc))
    finally:
        if copy.stream is task:
            copy.stream = None
        await connection.close()
    return Upgraded()


async def _receive(connection: Connection, copies: Copies, copy: Copy) -> None:
    """Take in pieces; acknowledge what is in the file.

    Nothing waits for the disk itself: a node that loses what it has not written yet has lost the
    container as well, and with it the copy.
    """
    arriving, archive = await copies.ready(copy), copy.archive
    assert archive is not None
    loop = asyncio.get_running_loop()
    await _acknowledge(connection, copies, copy, arriving.offset)
    said_s = loop.time()
    putting = copies.put_early(copy)
    try:
        while not arriving.is_whole:
            kind, message = await connection.receive()
            if kind != PIECE:
                raise RemoteProtocolError("the client sent what is not a piece")
            await copies.hold(copy, arriving.offset + max(len(message) - HEAD.size, 0))
            content = arriving.take(message)
            copy.arriving = None  # until it is what is in the file
            await work.run(lambda content=content: archive.append(content))  # type: ignore[misc]  # mypy knows no defaults of lambdas
            copy.arriving = arriving
            putting.wake()
            copies.hear(copy)
            if arriving.is_whole or loop.time() - said_s >= _PAUSE_S:
                await _acknowledge(connection, copies, copy, arriving.offset)
                said_s = loop.time()
    finally:
        if copy.arriving is None or not arriving.is_whole:
            await copy.stop_putting()


async def _acknowledge(connection: Connection, copies: Copies, copy: Copy, offset: int) -> None:
    copies.acknowledged(copy, offset)
    await connection.send(ACKNOWLEDGEMENT, encode_acknowledgement(offset))


async def _send(connection: Connection, copies: Copies, copy: Copy, offset: int) -> None:
    """Send pieces as they are made, and note what the client has."""
    session = copy.session
    await _acknowledge(connection, copies, copy, offset)
    async with _beside(_listen(connection, copies, copy)) as listening:
        ahead = _Ahead(copy, offset)
        try:
            while not listening.done():
                ready, _ = await asyncio.wait(
                    [ahead.reading, listening], timeout=_SIGN_S, return_when=FIRST_COMPLETED
                )
                if not ready:
                    await _acknowledge(connection, copies, copy, session.offset)
                elif ahead.reading in ready:
                    piece = await ahead.next()
                    if piece is None:
                        end = HEAD.pack(session.size_bytes, session.crc32)
                        await connection.send(END, end)
                        break
                    await connection.send(PIECE, piece)
        finally:
            await ahead.close()
        await listening


class _Ahead:
    """Reads an archive piece by piece, the next one while one is being sent.

    Args:
        copy: nobody closes its archive meanwhile; it may still be made.
        offset: where to begin.

    Attributes:
        reading: is done when the next piece is there, or it is known that there is none.
    """

    def __init__(self, copy: Copy, offset: int) -> None:
        self._copy = copy
        self._offset = offset
        self._buffers = [memoryview(bytearray(HEAD.size + PIECE_BYTES)) for _ in range(2)]
        self.reading = asyncio.create_task(self._read())

    async def next(self) -> memoryview | None:
        """Return the next piece with its head, valid until this is called again; None at the end.

        Raises:
            Refused: the archive cannot be made.
        """
        message = await self.reading
        if message is not None:
            self._offset += len(message) - HEAD.size
            self._copy.sent_bytes = self._offset
            self.reading = asyncio.create_task(self._read())
        return message

    async def close(self) -> None:
        """Let the archive be, and the memory go."""
        self.reading.cancel()
        await asyncio.gather(self.reading, return_exceptions=True)
        self._buffers.clear()

    async def _read(self) -> memoryview | None:
        if not await self._copy.grown(self._offset):
            return None
        self._buffers.reverse()
        return await work.run(partial(self._piece, self._buffers[0], self._offset))

    def _piece(self, buffer: memoryview, offset: int) -> memoryview:
        archive = self._copy.archive
        assert archive is not None
        end = HEAD.size + archive.read(offset, buffer[HEAD.size :])
        buffer[: HEAD.size] = head_of(offset, buffer[HEAD.size : end])
        return buffer[:end]


async def _listen(connection: Connection, copies: Copies, copy: Copy) -> None:
    while True:
        kind, message = await connection.receive()
        if kind != ACKNOWLEDGEMENT:
            raise RemoteProtocolError("the client sent what is not an acknowledgement")
        offset = decode_acknowledgement(message)
        if offset > copy.has_bytes:
            raise RemoteProtocolError("the client acknowledges more than there is")
        copies.acknowledged(copy, offset)


async def _refuse(connection: Connection, why: Refused) -> None:
    status = {"kind": "Status", "status": "Failure", "message": why.message, "code": why.code}
    status["details"] = {"kind": COPIES}
    await connection.send(REFUSAL, json.dumps(status).encode())


@asynccontextmanager
async def _beside(coroutine: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Do something else meanwhile; it ends with the block."""
    task = asyncio.create_task(coroutine)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task
