"""The bytes of a copy over a WebSocket, in pieces; see ``copy.archive.pieces``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

from aiohttp import web

from pycrictl.agent.copies import work
from pycrictl.agent.copies.connection import Connection, Unread, Upgraded, accept
from pycrictl.agent.copies.job import Copy
from pycrictl.agent.copies.refusals import Refused, refused
from pycrictl.agent.copies.service import Copies
from pycrictl.agent.copies.session import CopyPhase, Direction
from pycrictl.agent.copies.store import Archive
from pycrictl.copy.archive.pieces import (
    ACKNOWLEDGEMENT,
    HEAD,
    PIECE,
    PIECE_BYTES,
    REFUSAL,
    decode_acknowledgement,
    encode_acknowledgement,
    head_of,
)
from pycrictl.errors import PycrictlError, RemoteProtocolError

_PAUSE_S: Final = 0.2
"""Between two acknowledgements at least."""


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
    if session.phase is not CopyPhase.TRANSFERRING:
        raise Refused(409, f"the copy is {session.phase.value.lower()}: no bytes are wanted")
    if not 0 <= offset <= session.size_bytes:
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
    except PycrictlError as exc:
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
    while not arriving.is_whole:
        kind, message = await connection.receive()
        if kind != PIECE:
            raise RemoteProtocolError("the client sent what is not a piece")
        content = arriving.take(message)
        try:
            await work.run(lambda content=content: archive.append(content))  # type: ignore[misc]  # mypy knows no defaults of lambdas
        except BaseException:
            copy.arriving = None  # it is not what is in the file
            raise
        copies.hear(copy)
        if arriving.is_whole or loop.time() - said_s >= _PAUSE_S:
            await _acknowledge(connection, copies, copy, arriving.offset)
            said_s = loop.time()


async def _acknowledge(connection: Connection, copies: Copies, copy: Copy, offset: int) -> None:
    copies.acknowledged(copy, offset)
    await connection.send(ACKNOWLEDGEMENT, encode_acknowledgement(offset))


async def _send(connection: Connection, copies: Copies, copy: Copy, offset: int) -> None:
    """Send pieces, and note what the client has."""
    archive, size_bytes = copy.archive, copy.session.size_bytes
    assert archive is not None
    await _acknowledge(connection, copies, copy, offset)
    async with _beside(_listen(connection, copies, copy)) as listening:
        ahead = _Ahead(archive, offset)
        try:
            while ahead.offset < size_bytes and not listening.done():
                await connection.send(PIECE, await ahead.next())
        finally:
            await ahead.close()
        await listening


class _Ahead:
    """Reads an archive piece by piece, the next one while one is being sent.

    Args:
        archive: nobody closes it meanwhile.
        offset: where to begin.

    Attributes:
        offset: up to where pieces were returned.
    """

    def __init__(self, archive: Archive, offset: int) -> None:
        self.offset = offset
        self._archive = archive
        self._buffers = [memoryview(bytearray(HEAD.size + PIECE_BYTES)) for _ in range(2)]
        self._reading: asyncio.Task[memoryview] | None = self._read()

    async def next(self) -> memoryview:
        """Return the next piece with its head, valid until this is called again."""
        assert self._reading is not None
        message = await self._reading
        self.offset += len(message) - HEAD.size
        self._reading = self._read()
        return message

    async def close(self) -> None:
        """Let the archive be, and the memory go."""
        if self._reading is not None:
            await asyncio.wait([self._reading])
        self._reading = None
        self._buffers.clear()

    def _read(self) -> asyncio.Task[memoryview]:
        self._buffers.reverse()
        return asyncio.create_task(work.run(partial(self._piece, self._buffers[0], self.offset)))

    def _piece(self, buffer: memoryview, offset: int) -> memoryview:
        end = HEAD.size + self._archive.read(offset, buffer[HEAD.size :])
        buffer[: HEAD.size] = head_of(offset, buffer[HEAD.size : end])
        return buffer[:end]


async def _listen(connection: Connection, copies: Copies, copy: Copy) -> None:
    while True:
        kind, message = await connection.receive()
        if kind != ACKNOWLEDGEMENT:
            raise RemoteProtocolError("the client sent what is not an acknowledgement")
        offset = decode_acknowledgement(message)
        if offset > copy.session.size_bytes:
            raise RemoteProtocolError("the client acknowledges more than there is")
        copies.acknowledged(copy, offset)


async def _refuse(connection: Connection, why: Refused) -> None:
    status = {"kind": "Status", "status": "Failure", "message": why.message, "code": why.code}
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
