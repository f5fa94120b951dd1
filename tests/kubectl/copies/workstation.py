"""A client of an agent, with a connection between them that can break."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from pycrictl.copy import ends
from pycrictl.copy.archive.checksum import crc32
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules, Skipped
from pycrictl.copy.tree.walk import Watch
from pycrictl.kubectl.copies.api import CopyApi
from pycrictl.kubectl.copies.over_api import OverApi
from pycrictl.kubectl.copies.patience import Patience
from pycrictl.kubectl.copies.saved import CopyRecord, Saved
from pycrictl.streaming.target import Target
from tests.agent.copies.relay import Relay


class Workstation:
    """Copies as ``kubectl container-cp`` does.

    Attributes:
        relay: between it and the agent.
        notes, skipped, totals, bytes: what was shown.
    """

    def __init__(self, folder: Path, relay: Relay, state: Path) -> None:
        self.relay = relay
        self.state = state
        self.notes: list[str] = []
        self.skipped: list[Skipped] = []
        self.totals: list[int] = []
        self.bytes = 0
        self.retries: int | None = 50
        self.resume = False
        self._path = str(folder / "relay")
        self.watch = Watch(self._count, self.skipped.append, self.totals.append, self.notes.append)

    @property
    def api(self) -> CopyApi:
        return CopyApi(
            lambda path: Target("http", "localhost", 80, path, self._path), "shop", "web"
        )

    def method(self, local: Path | str = "-") -> OverApi:
        self.saved = Saved({"XDG_STATE_HOME": str(self.state)}, self.notes.append)
        return OverApi(
            self.api,
            CopyRecord((), "shop", "web", "", "", str(local), ""),
            self.saved,
            Patience(self.notes.append, retries=self.retries, sleep=_short),
            resume=self.resume,
        )

    def into(self, local: Path | str, path: str, **rules: Any) -> Summary:
        return ends.copy_to(
            self.method(local), os.fsencode(local), path.encode(), Rules(**rules), self.watch
        )

    def out(self, path: str, local: Path | str, **rules: Any) -> Summary:
        return ends.copy_from(
            self.method(local), path.encode(), os.fsencode(local), Rules(**rules), self.watch
        )

    def begin_to(self, data: bytes, path: str = "/to", **options: bool) -> str:
        """Begin a copy of an archive into the container by the API alone; return its name."""
        spec = {"direction": "To", "path": path, "size": len(data), "checksum": crc32(data)}
        return str(self.api.begin({**spec, "options": options})["metadata"]["name"])

    @property
    def kept(self) -> list[str]:
        """What is kept of copies."""
        folder = self.state / "pycrictl/copies"
        return sorted(one.name for one in folder.iterdir()) if folder.exists() else []

    def _count(self, count: int) -> None:
        self.bytes += count


def _short(_: float) -> None:
    time.sleep(0.02)
