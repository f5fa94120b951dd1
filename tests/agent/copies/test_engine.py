"""What a node does for a copy: by its proxy where there is one, else through /proc."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest

from pycrictl.agent.copies.engine import Engine
from pycrictl.agent.copies.session import CopySpec, Direction, Place
from pycrictl.copy.tree.walk import Watch
from pycrictl.cri.calls.client import CriClient
from pycrictl.errors import FailedPrecondition, NotFound
from pycrictl.wire.tar.writer import END_OF_ARCHIVE
from tests.copy.hostile import FILE, member
from tests.copy.trees import Archive, needs_root
from tests.proxy.conftest import folder, start
from tests.proxy.copier import Pretended
from tests.proxy.program import Program
from tests.waiting import wait_until

__all__ = ["folder", "start"]

pytestmark = needs_root

ARCHIVE = member(b"f", FILE, b"content") + END_OF_ARCHIVE
ASKED = Place("shop", "web", "uid1", "main")


def whole() -> Archive:
    """The archive, from a client that is away for a moment."""
    archive = Archive([b"", ARCHIVE])
    archive.kind = None
    return archive


def ignore(_: object) -> None:
    pass


WATCH = Watch(ignore, ignore)


def spec(path: str, *, overwrite: bool = True) -> CopySpec:
    return CopySpec(
        Direction.TO,
        path.encode(),
        size_bytes=len(ARCHIVE),
        crc32=crc32(ARCHIVE),
        overwrite=overwrite,
    )


def test_by_the_proxy(container: Pretended, start: Callable[..., Program], tmp_path: Path) -> None:
    proxy = start()
    engine = Engine(lambda: CriClient(str(proxy.socket_path), timeout_s=10))
    place = engine.find(ASKED)
    summary = engine.place(place, spec("/to/new"), whole(), WATCH)
    assert (summary.files, summary.size_bytes) == (1, 7)
    assert (container.root / "to/new").read_text() == "content"
    found = bytearray()
    sizes: list[int] = []
    asked = CopySpec(Direction.FROM, b"/to/new")
    engine.pack(place, asked, found.extend, WATCH._replace(on_archive=sizes.append))
    assert b"content" in found
    assert sizes == [len(found)]

    def copies() -> list[tuple[str, str]]:
        return re.findall(r" copy direction=(\w+) .*end=(\w+)", proxy.log())

    wait_until(lambda: copies() == [("to", "done"), ("from", "done")])
    # What the calls cannot ask for is done through /proc.
    (container.root / "to/f").write_text("old")
    engine.place(place, spec("/to", overwrite=False), whole(), WATCH)
    assert (container.root / "to/f").read_text() == "old"
    assert len(copies()) == 2


def test_a_container_that_is_not_there(container: Pretended, start: Callable[..., Program]) -> None:
    proxy = start()
    engine = Engine(lambda: CriClient(str(proxy.socket_path), timeout_s=10))
    place = engine.find(ASKED)
    engine.check(place)
    container.pods = {}
    with pytest.raises(FailedPrecondition, match="was stopped or replaced"):
        engine.check(place)
    with pytest.raises(NotFound, match='container "main" of pod "shop/web" has not been made'):
        engine.find(ASKED)
    assert os.listdir(container.root / "to") == []  # noqa: PTH208 (names alone)
