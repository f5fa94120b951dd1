"""The proxy's own calls to the runtime, as bytes.

Each has its own connection, so that it is independent of every client and ends with the connection.
That suits calls that are rare or long, such as pulls.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Final

from pycrictl.errors import RemoteProtocolError
from pycrictl.proxy.relay.calls import Answer, Metadata
from pycrictl.wire import codes
from pycrictl.wire.client_call import ClientCall

# How long a runtime that accepts connections may take to speak. The socket is local: only a
# runtime that hangs takes any time at all.
HANDSHAKE_TIMEOUT_S: Final = 5.0
_READ_BYTES: Final = 65536
_FULL_S: Final = 0.01


def runtime_name(path: str) -> str:
    """Name the runtime behind a socket, for status messages."""
    return f'the runtime at "unix://{path}"'


async def connect(path: str) -> socket.socket:
    """Connect to the runtime, and wait while the queue of those who want to is full.

    asyncio takes a unix socket that the queue has no room for as connected.

    Raises:
        OSError: it cannot be reached.
    """
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + HANDSHAKE_TIMEOUT_S
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.setblocking(False)
        while True:
            try:
                sock.connect(path)
            except BlockingIOError:
                if loop.time() > give_up_at:
                    raise
                await asyncio.sleep(_FULL_S)
            else:
                return sock
    except BaseException:
        sock.close()
        raise


class Upstream:
    """Calls the runtime behind the socket at ``path``. There is nothing to close."""

    def __init__(self, path: str) -> None:
        self.path = path

    async def unary(
        self,
        method: str,
        request: bytes,
        *,
        metadata: Metadata = (),
        timeout_s: float | None = None,
    ) -> Answer:
        """Make one call; cancelling it cancels it in the runtime.

        Args:
            method: full path, ``/runtime.v1.ImageService/PullImage``.
            request: the serialised message.
            metadata: what goes with it.
            timeout_s: deadline of the call, None without.

        Returns:
            The runtime's answer, which may be an error. If there is none, the answer is UNAVAILABLE
            or DEADLINE_EXCEEDED, with a message that begins with ``pycrictl proxy:``.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._call(
                    ClientCall(method, request, metadata=metadata, timeout_s=timeout_s)
                )
        except TimeoutError:
            return Answer(
                codes.DEADLINE_EXCEEDED,
                f"pycrictl proxy: {runtime_name(self.path)} did not answer in time",
            )

    async def _call(self, call: ClientCall) -> Answer:
        try:
            reader, writer = await asyncio.open_unix_connection(sock=await connect(self.path))
        except OSError as exc:
            return self._unavailable(f"cannot be reached: {os.strerror(exc.errno or 0)}")
        try:
            return await self._exchange(call, reader, writer)
        except OSError:
            return self._unavailable("closed the connection")
        except RemoteProtocolError:
            return self._unavailable("does not speak gRPC")
        finally:
            if call.answer is None:
                call.cancel()
                writer.write(call.data_to_send())
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()  # to a runtime that reads nothing it would never be closed
            else:
                writer.close()

    async def _exchange(
        self, call: ClientCall, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Answer:
        loop = asyncio.get_running_loop()
        while call.answer is None:
            writer.write(call.data_to_send())
            await writer.drain()
            try:
                async with asyncio.timeout(None if call.is_ready else HANDSHAKE_TIMEOUT_S):
                    data = await reader.read(_READ_BYTES)
            except TimeoutError:
                return self._unavailable("does not answer")
            if not data:
                return self._unavailable("closed the connection")
            call.receive_data(data, loop.time())
        return call.answer

    def _unavailable(self, why: str) -> Answer:
        return Answer(codes.UNAVAILABLE, f"pycrictl proxy: {runtime_name(self.path)} {why}")
