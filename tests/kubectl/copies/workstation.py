"""A client of an agent, with a connection between them that can break."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any
from zlib import crc32

from pycrictl.copy import ends
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules, Skipped
from pycrictl.copy.tree.walk import Watch
from pycrictl.kubectl.copies.api import CopyApi, Patience
from pycrictl.kubectl.copies.over_api import OverApi
from pycrictl.kubectl.copies.saved import CopyRecord, Saved
from pycrictl.streaming.target import Target
from tests.agent.copies.relay import Relay
from tests.copy.trees import Archive


class Workstation:
    """Copies as ``kubectl container-cp`` does.

    Attributes:
        relay: between it and the agent.
        notes, skipped, totals, bytes: what was shown.
    """

    relay: Relay

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.notes: list[str] = []
        self.skipped: list[Skipped] = []
        self.totals: list[int] = []
        self.bytes = 0
        self.retries: int | None = 50
        self.resume = False
        self.api = self.api_of("shop", "web", folder / "relay")
        self.watch = Watch(self._count, self.skipped.append, self.totals.append, self.notes.append)

    @staticmethod
    def api_of(namespace: str, pod: str, socket: Path) -> CopyApi:
        def target(path: str) -> Target:
            return Target("http", "localhost", 80, path, str(socket))

        return CopyApi(target, namespace, pod)

    def method(self, local: Path | str = "-") -> OverApi:
        self.saved = Saved({"XDG_STATE_HOME": str(self.state)}, self.notes.append)
        return OverApi(
            self.api,
            CopyRecord((), "shop", "web", str(local), {}),
            self.saved,
            Patience(self.notes.append, retries=self.retries, sleep=lambda _: time.sleep(0.02)),
            resume=self.resume,
        )

    def into(self, local: Path | str, path: str, **rules: Any) -> Summary:
        return ends.copy_to(
            self.method(local), os.fsencode(local), path.encode(), Rules(**rules), self.watch
        )

    def archive_into(self, data: bytes, path: str, **rules: Any) -> Summary:
        """Copy an archive that nobody here looks at."""
        parts = [data[at : at + (1 << 20)] for at in range(0, len(data), 1 << 20)]
        return self.method().write(Archive(parts), path.encode(), Rules(**rules), self.watch)

    def out(self, path: str, local: Path | str, **rules: Any) -> Summary:
        return ends.copy_from(
            self.method(local), path.encode(), os.fsencode(local), Rules(**rules), self.watch
        )

    def begin_to(self, data: bytes, path: str = "/to") -> str:
        """Begin a copy of an archive into the container by the API alone; return its name."""
        spec = {"direction": "To", "path": path, "size": len(data), "checksum": crc32(data)}
        return str(self.api.begin(spec)["metadata"]["name"])

    def begun_by_a_killed_program(self, path: str, local: Path) -> None:
        """Keep and begin a copy out of the container that nobody goes on with."""
        options = {"archive": False, "followLinks": False, "early": True}
        spec = {"direction": "From", "path": path, "options": options}
        record = CopyRecord((), "shop", "web", str(local), spec, "a" * 32)
        self.method()
        self.saved.keep(record).release()
        self.api.begin(spec, record.session)
        self.resume = True

    @property
    def kept(self) -> list[str]:
        """What is kept of copies."""
        folder = self.state / "pycrictl/copies"
        return sorted(one.name for one in folder.iterdir()) if folder.exists() else []

    def _count(self, count: int) -> None:
        self.bytes += count
