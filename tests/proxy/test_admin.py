from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pycrictl.errors import RemoteProtocolError
from pycrictl.proxy.admin import AdminServer, ask


async def echo(request: Mapping[str, Any]) -> dict[str, Any]:
    return dict(request)


def serve(tmp_path: Path, test: Callable[[str], Awaitable[None]]) -> None:
    async def run() -> None:
        path = str(tmp_path / "s")
        server = AdminServer({"echo": echo})
        await server.start(path)
        try:
            async with asyncio.timeout(60):
                await test(path)
        finally:
            await server.stop()

    asyncio.run(run())


def test_bad_lines_are_answered_and_the_next_one_as_well(tmp_path: Path) -> None:
    async def test(path: str) -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        for line in (b"{", b"[]", b"null", b'{"call": ["echo"]}', b"[" * 4000, b"\xff"):
            writer.write(line + b"\n")
            assert "error" in json.loads(await reader.readline())
        writer.write(b'{"call": "echo"}\n')
        assert json.loads(await reader.readline()) == {"ok": {"call": "echo"}}
        writer.write(b"x" * 100_000)
        assert await reader.read() == b""
        writer.close()

    serve(tmp_path, test)


def test_stopping_ends_idle_connections_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        server = AdminServer({"echo": echo})
        await server.start(str(tmp_path / "s"))
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        writer.write(b'{"call": "echo"}\n')
        await reader.readline()
        await server.stop()
        assert await reader.read() == b""
        writer.close()

    asyncio.run(run())
    assert caplog.records == []


@pytest.mark.parametrize("answer", [b"", b"hello\n", b"[]\n", b"{}\n", b'{"ok"'])
def test_somebody_else_listens(tmp_path: Path, answer: bytes) -> None:
    async def run() -> None:
        async def serve_other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.write(answer)
            writer.close()

        path = str(tmp_path / "s")
        async with await asyncio.start_unix_server(serve_other, path):
            with pytest.raises(RemoteProtocolError):
                await asyncio.to_thread(ask, path, "status", timeout_s=60)

    asyncio.run(run())
