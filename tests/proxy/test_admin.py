from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pycrictl.base.errors import RemoteProtocolError
from pycrictl.proxy.admin import AdminServer, ask


async def echo(request: Mapping[str, Any]) -> dict[str, Any]:
    return dict(request)


def test_bad_lines_are_answered_and_stopping_ends_calls_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        path = str(tmp_path / "s")
        begun = asyncio.Event()

        async def wait(request: Mapping[str, Any]) -> dict[str, Any]:
            begun.set()
            return await asyncio.Future()

        server = AdminServer({"echo": echo, "wait": wait})
        await server.start(path)

        async def answer(line: bytes) -> bytes:
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(line)
            answer = await reader.read()
            writer.close()
            return answer

        for line in (b"{", b"[]", b"null", b'{"call": ["echo"]}', b"[" * 4000, b"\xff"):
            assert "error" in json.loads(await answer(line + b"\n"))
        assert json.loads(await answer(b'{"call": "echo"}\n')) == {"ok": {"call": "echo"}}
        assert await answer(b"x" * 100_000) == b""
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b'{"call": "wait"}\n')
        await begun.wait()
        await server.stop()
        assert await reader.read() == b""
        writer.close()

    asyncio.run(asyncio.wait_for(run(), 60))
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
