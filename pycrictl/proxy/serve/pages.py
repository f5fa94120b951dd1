"""Small pages over HTTP: each is made when it is asked for, and its connection ends with it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final, TypeAlias

from pycrictl.proxy.serve.http_server import HttpServer, Page, RequestRefused, places
from pycrictl.proxy.serve.stream_server import listening
from pycrictl.servicelog import Log
from pycrictl.serviceoptions import Address
from pycrictl.wire import limits
from pycrictl.wire.http1 import Request

PAGE_S: Final = 30.0
"""How long a page may take to be made and sent."""

MakePage: TypeAlias = Callable[[], Awaitable[Page]]


class PageServer:
    def __init__(self, pages: Mapping[str, MakePage], *, log: Log) -> None:
        self._pages = pages
        most = places(limits.PAGE_CONNECTIONS, limits.PAGE_SHARE)
        self._http = HttpServer(self._route, places=most, log=log)

    def start(self, address: Address) -> Address:
        # A program that takes over listens before this one has stopped.
        listener = listening(address, is_shared=True)
        self._http.listen(listener)
        return Address(address.host, listener.getsockname()[1])

    async def stop(self) -> None:
        await self._http.stop()

    def _route(
        self, request: Request, sock: socket.socket, early: bytes
    ) -> Coroutine[Any, Any, None]:
        make = self._pages.get(request.target.partition("?")[0])
        if make is None:
            raise RequestRefused(HTTPStatus.NOT_FOUND)
        if request.method != "GET":
            raise RequestRefused(HTTPStatus.METHOD_NOT_ALLOWED)
        return _send(sock, make)


async def _send(sock: socket.socket, make: MakePage) -> None:
    with sock, suppress(OSError, TimeoutError):  # the client is gone, or does not read
        async with asyncio.timeout(PAGE_S):
            data = (await make()).response()
            await asyncio.get_running_loop().sock_sendall(sock, data)
