"""The method rpc in front of a fake runtime and a server of copy streams."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pycrictl.copy import ends
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules, Skipped
from pycrictl.copy.transfer.over_rpc import OverRpc
from pycrictl.copy.tree.walk import Watch
from pycrictl.cri.calls.client import CriClient
from pycrictl.wire.tar.writer import END_OF_ARCHIVE
from tests.copy.copyserver import CopyServer, copy_server
from tests.copy.hostile import FILE, member
from tests.fakecri.server import FakeServer

MIB = 1 << 20
HONEST = member(b"d/", b"5", mode=0o755) + member(b"d/f", FILE, b"content") + END_OF_ARCHIVE
FAILURE = b'{"status":"Failure","message":"the disk is \\u001b[31mfull"}'


class Copier(OverRpc):
    """The method, with what it tells kept."""

    def __init__(self, client: CriClient, **others: Any) -> None:
        super().__init__(client, "c1", **{"idle_s": 60.0, "outcome_s": 60.0, **others})
        self.skipped: list[Skipped] = []
        self.bytes = 0
        self.totals: list[int] = []
        self.watch = Watch(self._count, self.skipped.append, self.totals.append)

    def _count(self, count: int) -> None:
        self.bytes += count

    def out(self, path: str, local: Path, rules: Rules | None = None) -> Summary:
        return ends.copy_from(self, path.encode(), os.fsencode(local), rules or Rules(), self.watch)

    def into(self, local: Path, path: str, rules: Rules | None = None) -> Summary:
        return ends.copy_to(self, os.fsencode(local), path.encode(), rules or Rules(), self.watch)


@pytest.fixture
def server() -> Iterator[CopyServer]:
    with copy_server() as server:
        yield server


@pytest.fixture
def client(fake: FakeServer) -> Iterator[CriClient]:
    with CriClient(fake.path, timeout_s=60) as client:
        yield client


@pytest.fixture
def copier(client: CriClient) -> Copier:
    return Copier(client)
