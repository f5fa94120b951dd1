"""An agent that has nothing but copies, on a Unix socket; also as a process that can be killed.

``python -m tests.agent.copies.small SOCKET STORE RUNTIME [OPTION=NUMBER...]``
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web

from pycrictl.agent.copies.admission import check_folder
from pycrictl.agent.copies.engine import Engine
from pycrictl.agent.copies.handlers import answer_here
from pycrictl.agent.copies.http_errors import Refused
from pycrictl.agent.copies.service import Copies
from pycrictl.agent.copies.session import (
    CopyOwner,
    End,
    Session,
)
from pycrictl.copy.rules.quotas import Quotas
from pycrictl.cri.calls.client import CriClient
from pycrictl.kube.pods import Pod


def status_of(refused: Refused) -> web.Response:
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": refused.message,
        "details": {"kind": "containercopies", "name": "n"},
        "code": refused.code,
    }
    return web.Response(status=refused.code, body=json.dumps(status).encode())


class SmallAgent:
    """The copies of a pretended node.

    Attributes:
        copies: what is served.
        audits: how copies ended.
        uid: of the pod.
        now_s: what its clock shows, if it is not the system's.
    """

    def __init__(
        self,
        path: str,
        store: str,
        runtime: str,
        engine: Engine | None = None,
        /,
        **options: float,
    ) -> None:
        self.audits: list[tuple[Session, End]] = []
        self.uid = "uid1"
        self.now_s: float | None = None
        self._path = path
        self._quotas = Quotas(
            size_limit_bytes=int(options.get("size_limit", 0)),
            copies_per_pod=int(options.get("per_pod", 0)),
        )
        self._spool_limit = int(options.get("spool_limit", 0))
        self._lifetime_s = options.get("lifetime_s", 900.0)
        self._store = store
        self._engine = engine or Engine(lambda: CriClient(runtime, timeout_s=10))

    async def start(self) -> None:
        check_folder(self._store)
        self.copies = Copies(
            self._store,
            self._engine,
            self._quotas,
            spool_limit_bytes=self._spool_limit,
            audit=lambda session, end: self.audits.append((session, end)),
            lifetime_s=self._lifetime_s,
            clock=lambda: time.monotonic() if self.now_s is None else self.now_s,
        )
        await self.copies.start()
        self._server = web.Server(self._handle, handler_cancellation=True)
        with suppress(FileNotFoundError):
            os.unlink(self._path)  # noqa: PTH108 (the lint knows this name only as one that waits)
        self._listener = await asyncio.get_running_loop().create_unix_server(
            self._server, self._path
        )

    async def stop(self) -> None:
        self._listener.close()
        await self.copies.stop()
        await self._server.shutdown(1)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path, _, query = request.raw_path.partition("?")
        words = path.split("/")[4:]
        _, namespace, _, pod, _, *rest = words
        owner = CopyOwner(request.headers.get("X-User", "jane"))
        found = Pod(namespace, pod, self.uid, "Running", (), (), container="main")
        try:
            given = dict(parse_qsl(query))
            return await answer_here(self.copies, request, owner, found, rest, given)
        except Refused as exc:
            return status_of(exc)


class InThread:
    """A small agent in a thread of this process."""

    def __init__(self, agent: SmallAgent) -> None:
        self.agent = agent
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.do(agent.start())

    def do(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def call(self, function: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return function()

        return self.do(run())

    def close(self) -> None:
        self.do(self.agent.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()


async def main() -> None:
    path, store, runtime, *options = sys.argv[1:]
    numbers = dict(one.split("=") for one in options)
    agent = SmallAgent(path, store, runtime, **{key: float(one) for key, one in numbers.items()})
    await agent.start()
    os.write(1, b"ready\n")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
