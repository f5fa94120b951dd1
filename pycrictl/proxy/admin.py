"""The proxy's admin service: one JSON object per line, both ways, on its own unix socket.

::

    {"call": "status"}                  -> {"ok": {…}}
    {"call": "set-limit", "limit": 4}   -> {"ok": {"limit": 4, "before": 2}}
    an invalid call                     -> {"error": "…"}

A connection carries one call. Any client that can open the socket may make all calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from pycrictl.base.errors import ConnectError, PycrictlError, RemoteProtocolError, reason_of
from pycrictl.base.foreign import mapping, parse, parsed, text
from pycrictl.base.units import quote
from pycrictl.streams.loop import end_tasks

MAX_REQUEST_BYTES: Final = 4096
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024

Call: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]
"""Answers a call; raises ValueError if its arguments are wrong."""

Take: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bool]]
"""Takes a connection whose call has been read; returns whether it keeps the connection."""


class AdminServer:
    """Answers calls by name; the functions in ``connections`` get the connection itself."""

    def __init__(
        self, calls: Mapping[str, Call], *, connections: Mapping[str, Take] | None = None
    ) -> None:
        self._calls = calls
        self._server: asyncio.Server | None = None
        self._connections = connections or {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, path: str) -> None:
        listener = socket.socket(socket.AF_UNIX)
        os.fchmod(listener.fileno(), 0o600)  # Linux gives the file the socket's mode
        listener.bind(path)
        self._server = await asyncio.start_unix_server(
            self._serve, sock=listener, limit=MAX_REQUEST_BYTES
        )

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        await end_tasks(self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        is_kept = False
        try:
            line = await reader.readline()
            if (handle := self._connections.get(text(parsed(line).get("call")))) is not None:
                is_kept = await handle(reader, writer)
            else:
                writer.write(json.dumps(await self._answer(line)).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError):
            pass  # disconnected, or an endless line
        except asyncio.CancelledError:
            pass  # stopping; raising would be logged as an error
        finally:
            self._tasks.discard(task)
            if not is_kept:
                writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = mapping(parse(line))
            if (call := self._calls.get(text(request.get("call")))) is None:
                return {"error": f"unknown call; known calls: {', '.join(self._calls)}"}
            return {"ok": await call(request)}
        except ValueError as exc:
            return {"error": str(exc) or "not a JSON object"}


def ask(path: str, name: str, *, timeout_s: float, **arguments: Any) -> dict[str, Any]:
    """Make one call to the admin service of a running proxy; ``timeout_s`` is for each step."""
    line = json.dumps({"call": name, **arguments}).encode() + b"\n"
    where = f"the proxy's admin socket {quote('unix://' + path)}"
    try:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as connection:
            connection.settimeout(timeout_s)
            connection.connect(path)
            connection.sendall(line)
            with connection.makefile("rb") as stream:
                content = stream.readline(MAX_ANSWER_BYTES)
    except OSError as exc:
        reason = reason_of(exc)
        raise ConnectError(
            f"cannot reach {where}: {reason}",
            hint="is 'pycrictl proxy' running? --admin-socket names its admin socket",
        ) from None
    try:
        answer = parse(content)
        if "error" in answer:
            raise PycrictlError(str(answer["error"]))
        document: dict[str, Any] = answer["ok"]
    except (ValueError, KeyError, TypeError):
        raise RemoteProtocolError(f"{where} did not answer as a proxy does") from None
    return document
