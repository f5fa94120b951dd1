"""An agent that serves only copies, on a Unix socket; also runs as a process that can be killed.

``python -m tests.cluster.agent.copies.small FOLDER RUNTIME lifetime_s=NUMBER``
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl

from aiohttp import web

from pycrictl.cluster.agent.api.answers import refuse
from pycrictl.cluster.agent.copies.documents import (
    CopyEnded,
    CopyOwner,
    CopyRequest,
    NodeCopy,
    Refused,
    encode,
)
from pycrictl.cluster.agent.copies.sessions import Sessions
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.service.copies import Copies
from pycrictl.copy.service.slots import Slots, check_folder, free_bytes
from pycrictl.copy.service.transfer import Download
from pycrictl.copy.tree.walk import Watch
from pycrictl.kube.pods import Pod
from pycrictl.runtime.cri.calls.client import CriClient

Write = Callable[[memoryview], None]
Make = Callable[[Write, Watch], None]


class MadeCopies(Copies[NodeCopy]):
    """Copies that send archives made by a test, if ``make`` is set."""

    make: Make | None = None

    def work(self, copy: NodeCopy, watch: Watch) -> Summary:
        if self.make is None or not isinstance(copy.transfer, Download):
            return super().work(copy, watch)
        self.make(copy.transfer.write, watch)
        return Summary()


class SmallAgent:
    """Serves the copies of a fake node, in a thread of this process, at ``FOLDER/agent``.

    Attributes:
        copies: the service.
        audits: how each copy ended.
    """

    def __init__(
        self, folder: Path, runtime: str, make: Make | None = None, **options: float
    ) -> None:
        self.audits: list[str] = []
        self.make = make
        self._runtime = runtime
        self._path, self._store = str(folder / "agent"), str(folder / "store")
        self._options = options
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.start()

    def start(self) -> None:
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(30)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(30)

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _start(self) -> None:
        check_folder(self._store)
        size_limit, per_pod, disk_limit = (
            int(self._options.get(name, 0)) for name in ("size_limit", "per_pod", "spool_limit")
        )
        slots = Slots(
            size_limit_bytes=size_limit,
            copies_per_pod=per_pod,
            disk_limit_bytes=disk_limit,
            free_bytes=partial(free_bytes, self._store),
        )
        self.copies = MadeCopies(
            slots,
            lambda: CriClient(self._runtime, timeout_s=10),
            self._store,
            lambda copy: self._audit(copy.ended),
            encode,
            lifetime_s=self._options.get("lifetime_s", 900.0),
            keeps_ended=True,
        )
        self.copies.make = self.make
        self.copies.start()
        self._sessions = Sessions(self.copies, self._audit)
        self._server = web.Server(self._handle, handler_cancellation=True)
        with suppress(FileNotFoundError):
            os.unlink(self._path)  # noqa: PTH108 (the lint knows this name only as one that waits)
        self._listener = await self._loop.create_unix_server(self._server, self._path)

    def _audit(self, ended: CopyEnded) -> None:
        self.audits.append(ended.end.value)

    async def _stop(self) -> None:
        self._listener.close()
        await self.copies.stop()
        await self._server.shutdown(1)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path, _, query = request.raw_path.partition("?")
        _, namespace, _, pod, _, *words = path.split("/")[4:]
        known = Pod(namespace, pod, "uid1", "Running", (), (), container="main")
        asked = CopyRequest(request, namespace, pod, words, dict(parse_qsl(query)))
        try:
            return await self._sessions.answer(asked, CopyOwner("jane"), known)
        except Refused as exc:
            return refuse(exc)


if __name__ == "__main__":
    SmallAgent(Path(sys.argv[1]), sys.argv[2], lifetime_s=float(sys.argv[3].split("=")[1]))
    os.write(1, b"ready\n")
    signal.pause()
