"""A workstation and the agent of a fake node, with a connection between them that can break."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pycrictl.cluster.kubectl.copies import CopyApi, OverApi, RetryPolicy
from pycrictl.copy import methods
from pycrictl.copy.archive.archives import Archive
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules, Skipped
from pycrictl.copy.tree.walk import Watch
from pycrictl.streams.target import Target
from tests.cluster.agent.copies.conftest import spooled
from tests.cluster.agent.copies.relay import Relay
from tests.cluster.agent.copies.small import SmallAgent
from tests.copy.trees import stages_in
from tests.proxy.copier import Pretended
from tests.waiting import wait_until

ROOT = Path(__file__).parents[4]


class Workstation:
    """Copies as ``kubectl container-cp`` does, through a relay to an agent, with one container.

    Attributes:
        here: a local directory.
        there: the directory ``/to`` of the container.
        agent: the agent started last, unless it is a process.
        notes, skipped, totals, bytes: reported to the user.
    """

    agent: SmallAgent

    def __init__(self, folder: Path, container: Pretended, runtime: str) -> None:
        self.folder = folder
        self.container, self.there, self.here = container, container.root / "to", folder / "here"
        self.here.mkdir()
        self.relay = Relay(str(folder / "relay"), str(folder / "agent"))
        self._runtime = runtime
        self._started = ExitStack()
        self.notes: list[str] = []
        self.skipped: list[Skipped] = []
        self.totals: list[int] = []
        self.bytes = 0
        self.retries: int | None = 50
        self.api = self.api_of("shop", "web")
        self.watch = Watch(self._count, self.skipped.append, self.totals.append, self.notes.append)

    def close(self) -> None:
        self.relay.close()
        self._started.close()

    def _count(self, count: int) -> None:
        self.bytes += count

    def api_of(self, namespace: str, pod: str) -> CopyApi:
        socket = str(self.folder / "relay")
        return CopyApi(lambda path: Target("http", "localhost", 80, path, socket), namespace, pod)

    def method(self) -> OverApi:
        retry_policy = RetryPolicy(
            self.notes.append, retries=self.retries, sleep=lambda _: time.sleep(0.02)
        )
        return OverApi(self.api, "", retry_policy)

    def into(self, local: Path | str, path: str, **rules: Any) -> Summary:
        method = self.method()
        return methods.copy_to(
            method, [os.fsencode(local)], path.encode(), Rules(**rules), self.watch
        )

    def write(self, archive: Archive, path: str = "/to", /, **rules: Any) -> Summary:
        """Copy an archive that is not checked on this side."""
        return self.method().write(archive, path.encode(), Rules(**rules), self.watch)

    def out(self, path: str, local: Path | str, **rules: Any) -> Summary:
        method, to = self.method(), os.fsencode(local)
        return methods.copy_from(method, path.encode(), to, Rules(**rules), self.watch)

    def start(self, **options: Any) -> SmallAgent:
        """Replace the agent; the options are those of ``SmallAgent``."""
        self._started.close()
        self.agent = SmallAgent(self.folder, self._runtime, **options)
        self._started.callback(self.agent.close)
        return self.agent

    def start_process(self, lifetime_s: float) -> None:
        """Kill the agent, and start one as a process."""
        self._started.close()
        words = ["-m", "tests.cluster.agent.copies.small", str(self.folder), self._runtime]
        process = subprocess.Popen(
            [sys.executable, *words, f"lifetime_s={lifetime_s}"], cwd=ROOT, stdout=subprocess.PIPE
        )
        self._started.enter_context(process)
        self._started.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"

    def wait_for(self, passed: int) -> None:
        """Wait until more than ``passed`` bytes have gone through the relay."""
        wait_until(lambda: self.relay.passed > passed)

    @contextmanager
    def meanwhile(self, passed: int, act: Callable[[], object]) -> Iterator[None]:
        """While the block runs, call ``act`` once ``passed`` more bytes have gone through."""
        limit = self.relay.passed + passed

        def run() -> None:
            self.wait_for(limit)
            act()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            thread.join()

    def left(self) -> list[Path | str]:
        """Return the files that both sides still have on disk, including stages."""
        stages = stages_in(self.here, self.container.root)
        return [*spooled(self.folder / "store"), *stages]
