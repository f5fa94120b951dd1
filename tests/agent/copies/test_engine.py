"""What a node does for a copy: by its proxy where there is one, else through /proc."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pytest

from pycrictl.agent.copies.engine import Engine
from pycrictl.agent.copies.session import CopySpec, Direction, Place
from pycrictl.cri.calls.client import CriClient
from pycrictl.errors import FailedPrecondition, NotFound
from tests.copy.trees import UNWATCHED, Archive, needs_root
from tests.proxy.conftest import folder, start
from tests.proxy.copier import ARCHIVE, Pretended
from tests.proxy.program import Program
from tests.waiting import wait_until

__all__ = ["folder", "start"]

pytestmark = needs_root

ASKED = Place("shop", "web", "uid1", "main")


def test_by_the_proxy_and_beside_it(
    container: Pretended, start: Callable[..., Program], tmp_path: Path
) -> None:
    """What the calls cannot ask for is done through /proc."""
    proxy = start()
    engine = Engine(lambda: CriClient(str(proxy.socket_path), timeout_s=10))
    place = engine.find(ASKED)
    engine.check(place)
    to = CopySpec(Direction.TO, b"/to/f", size_bytes=len(ARCHIVE), crc32=crc32(ARCHIVE))
    for spec in (to, replace(to, path=b"/to", overwrite=False)):
        archive = Archive([b"", ARCHIVE])  # from a client that is away for a moment
        archive.kind = None
        engine.place(place, spec, archive, UNWATCHED)
        (container.root / "to/f").write_text("old")
    found = bytearray()
    engine.pack(place, CopySpec(Direction.FROM, b"/to/f"), found.extend, UNWATCHED)
    assert b"old" in found

    def copies() -> list[tuple[str, str]]:
        return re.findall(r" copy direction=(\w+) .*end=(\w+)", proxy.log())

    wait_until(lambda: copies() == [("to", "done"), ("from", "done")])
    container.pods = {}
    with pytest.raises(FailedPrecondition, match="was stopped or replaced"):
        engine.check(place)
    with pytest.raises(NotFound, match='container "main" of pod "shop/web" has not been made'):
        engine.find(ASKED)
