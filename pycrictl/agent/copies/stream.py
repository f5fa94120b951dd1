"""The bytes of a copy over a WebSocket, in pieces; see ``copy.archive.pieces``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from aiohttp import WSMsgType, web

from pycrictl.agent.copies import work
from pycrictl.agent.copies.job import Copy
from pycrictl.agent.copies.refusals import Refused, refused
from pycrictl.agent.copies.service import Copies
from pycrictl.agent.copies.session import CopyPhase, Direction
from pycrictl.copy.archive.pieces import (
    ACKNOWLEDGEMENT,
    HEAD,
    MAX_MESSAGE_BYTES,
    PIECE,
    PIECE_BYTES,
    PROTOCOL,
    REFUSAL,
    Arriving,
    decode_acknowledgement,
    encode_acknowledgement,
    head_of,
)
from pycrictl.errors import PycrictlError, RemoteProtocolError

IDLE_S: Final = 60.0
"""How long a client may send nothing, or take nothing."""

_PAUSE_S: Final = 0.2
"""Between two acknowledgements at least."""

_PREFIX: Final = {kind: bytes((kind,)) for kind in (PIECE, ACKNOWLEDGEMENT, REFUSAL)}


class Unread(Exception):
    """The client has gone, or is too slow."""


def wants_stream(request: web.BaseRequest) -> bool:
    """Return whether a request asks for an upgrade."""
    return "upgrade" in request.headers.get("Connection", "").lower()


async def serve(
    request: web.BaseRequest, copies: Copies, copy: Copy, offset: int
) -> web.WebSocketResponse:
    """Send or receive the archive of a copy, as far as the connection lasts.

    Args:
        request: of the upgrade.
        copies: has the copy.
        copy: can go on.
        offset: from where on the client wants what comes from a container.

    Raises:
        Refused: the copy is not in the phase for it.
    """
    session = copy.session
    if session.phase is not CopyPhase.TRANSFERRING:
        raise Refused(409, f"the copy is {session.phase.value.lower()}: no bytes are wanted")
    if not 0 <= offset <= session.size_bytes:
        raise Refused(422, f"the archive has {session.size_bytes} bytes")
    task = asyncio.current_task()
    assert task is not None
    await copies.attach(copy, task)
    socket = web.WebSocketResponse(
        protocols=[PROTOCOL],
        compress=False,
        decode_text=False,
        max_msg_size=MAX_MESSAGE_BYTES + 1,
        writer_limit=PIECE_BYTES,
        timeout=5.0,
    )
    await socket.prepare(request)
    try:
        if session.spec.direction is Direction.TO:
            await _receive(socket, copies, copy)
        else:
            await _send(socket, copies, copy, offset)
    except asyncio.CancelledError:
        if request.transport is not None:
            request.transport.abort()  # another connection waits for the end of this one
        raise
    except (Unread, ConnectionError, RemoteProtocolError):
        pass  # it goes on with another connection
    except PycrictlError as exc:
        with suppress(ConnectionError):
            await _refuse(socket, refused(exc))
    finally:
        if copy.stream is task:
            copy.stream = None
        with suppress(ConnectionError):
            await socket.close()
    return socket


async def _receive(socket: web.WebSocketResponse, copies: Copies, copy: Copy) -> None:
    """Take in pieces; acknowledge what is on the disk."""
    arriving, archive = await copies.ready(copy), copy.archive
    assert archive is not None
    copies.acknowledged(copy, arriving.offset)
    await socket.send_bytes(_PREFIX[ACKNOWLEDGEMENT] + encode_acknowledgement(arriving.offset))
    arrived = asyncio.Event()
    async with _beside(_acknowledge(socket, copies, copy, arriving, arrived)) as acknowledging:
        while not arriving.is_whole:
            message = await _next(socket)
            if message[0] != PIECE:
                raise RemoteProtocolError("the client sent what is not a piece")
            content = arriving.take(message[1:])
            try:
                await work.run(lambda content=content: archive.append(content))  # type: ignore[misc]  # mypy knows no defaults of lambdas
            except BaseException:
                copy.arriving = None  # it is not what is in the file
                raise
            copies.hear(copy)
            arrived.set()
            if acknowledging.done():
                break
        await acknowledging


async def _acknowledge(
    socket: web.WebSocketResponse,
    copies: Copies,
    copy: Copy,
    arriving: Arriving,
    arrived: asyncio.Event,
) -> None:
    archive = copy.archive
    assert archive is not None
    while copy.session.offset < arriving.size_bytes:
        await arrived.wait()
        arrived.clear()
        # What comes while this waits counts the next time.
        offset = archive.size_bytes
        await work.run(archive.sync)
        copies.acknowledged(copy, offset)
        await socket.send_bytes(_PREFIX[ACKNOWLEDGEMENT] + encode_acknowledgement(offset))
        if not arriving.is_whole:
            await asyncio.sleep(_PAUSE_S)


async def _send(socket: web.WebSocketResponse, copies: Copies, copy: Copy, offset: int) -> None:
    """Send pieces, and note what the client has."""
    archive = copy.archive
    assert archive is not None
    copies.acknowledged(copy, offset)
    await socket.send_bytes(_PREFIX[ACKNOWLEDGEMENT] + encode_acknowledgement(offset))

    buffer = memoryview(bytearray(PIECE_BYTES))

    def piece_at(offset: int) -> bytes:
        content = buffer[: archive.read(offset, buffer)]
        return b"".join((_PREFIX[PIECE], head_of(offset, content), content))

    async with _beside(_listen(socket, copies, copy)) as listening:
        while offset < copy.session.size_bytes and not listening.done():
            message = await work.run(lambda offset=offset: piece_at(offset))  # type: ignore[misc]  # mypy knows no defaults of lambdas
            try:
                async with asyncio.timeout(IDLE_S):
                    await socket.send_bytes(message)
            except TimeoutError:
                raise Unread from None
            offset += len(message) - 1 - HEAD.size
        await listening


async def _listen(socket: web.WebSocketResponse, copies: Copies, copy: Copy) -> None:
    while True:
        message = await _next(socket)
        if message[0] != ACKNOWLEDGEMENT:
            raise RemoteProtocolError("the client sent what is not an acknowledgement")
        offset = decode_acknowledgement(message[1:])
        if offset > copy.session.size_bytes:
            raise RemoteProtocolError("the client acknowledges more than there is")
        copies.acknowledged(copy, offset)


async def _next(socket: web.WebSocketResponse) -> memoryview:
    """Return the next message, which is not empty.

    Raises:
        Unread: there is none.
    """
    try:
        message = await socket.receive(IDLE_S)
    except TimeoutError:
        raise Unread from None
    if message.type is not WSMsgType.BINARY or not message.data:
        raise Unread
    return memoryview(message.data)


async def _refuse(socket: web.WebSocketResponse, why: Refused) -> None:
    status = {"kind": "Status", "status": "Failure", "message": why.message, "code": why.code}
    await socket.send_bytes(_PREFIX[REFUSAL] + json.dumps(status).encode())


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
