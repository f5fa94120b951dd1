"""Small pages over HTTP: each is made when it is asked for, and its connection ends with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from pycrictl.errors import RemoteProtocolError
from pycrictl.proxy.serve.http_listener import HttpListener, Pending
from pycrictl.proxy.serve.stream_server import listening
from pycrictl.servicelog import Log
from pycrictl.serviceoptions import Address
from pycrictl.streaming.loop import end_tasks
from pycrictl.wire.http1 import parse_request, serialize_response

PAGE_S: Final = 30.0
"""How long a page may take to be made and sent."""

_REASONS: Final = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed"}
_UNAVAILABLE: Final = "Service Unavailable"


class Page(NamedTuple):
    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"

    def response(self) -> bytes:
        headers = [
            ("Content-Type", self.content_type),
            ("Content-Length", str(len(self.body))),
            ("Cache-Control", "no-store"),
            ("Connection", "close"),
        ]
        if self.status == 405:
            headers.append(("Allow", "GET"))
        reason = _REASONS.get(self.status, _UNAVAILABLE)
        return serialize_response(self.status, reason, headers, self.body)


MakePage: TypeAlias = Callable[[], Awaitable[Page]]


class PageServer:
    def __init__(self, pages: Mapping[str, MakePage], *, log: Log) -> None:
        self._pages = pages
        self._log = log
        self._http: HttpListener | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, address: Address) -> Address:
        # A program that takes over listens before this one has stopped.
        listener = listening(address, is_shared=True)
        self._http = HttpListener(listener, self._requested, log=self._log)
        return Address(address.host, listener.getsockname()[1])

    async def stop(self) -> None:
        if self._http is not None:
            self._http.close()
        await end_tasks(self._tasks)

    def _requested(self, pending: Pending, head: bytes, early: bytes) -> None:
        assert self._http is not None
        try:
            request = parse_request(head)
        except RemoteProtocolError:
            self._http.answer(pending, Page(400, b"bad request\n").response())
            return
        make = self._pages.get(request.target.partition("?")[0])
        if make is None or request.method != "GET":
            page = Page(404, b"not found\n") if make is None else Page(405, b"only GET\n")
            self._http.answer(pending, page.response())
            return
        self._http.admit(pending)
        task = asyncio.create_task(self._serve(pending, make))
        self._tasks.add(task)
        task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        assert self._http is not None
        self._tasks.discard(task)
        self._http.left()

    async def _serve(self, pending: Pending, make: MakePage) -> None:
        with pending.sock:
            try:
                async with asyncio.timeout(PAGE_S):
                    data = (await make()).response()
                    await asyncio.get_running_loop().sock_sendall(pending.sock, data)
            except (OSError, TimeoutError):
                pass  # the client is gone, or does not read
            except asyncio.CancelledError:
                pass  # it stops; raising would be logged as an error
