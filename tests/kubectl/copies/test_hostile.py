"""The corpus of hostile archives by way of an agent, in both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pycrictl.copy.tree.walk import Watch
from pycrictl.errors import CopyError
from tests.agent.copies.small import SmallAgent, Write
from tests.copy.hostile import HOSTILE, build_surroundings, snapshot
from tests.copy.trees import needs_root, stages_in
from tests.kubectl.copies.workstation import Workstation
from tests.proxy.copier import Pretended

pytestmark = needs_root

SMALL = {name: case for name, case in HOSTILE.items() if len(case.data) < 8 << 20}


@contextmanager
def refused(name: str, parent: Path) -> Iterator[None]:
    """Expect that a copy to ``dest`` is refused, and changes nothing."""
    parent.mkdir()
    build_surroundings(parent)
    if before := SMALL[name].before:
        before(parent / "dest")
    listing = snapshot(parent)
    with pytest.raises(CopyError) as caught:
        yield
    assert snapshot(parent) == listing, name
    message = caught.value.message
    assert "\x1b" not in message, name
    assert "agent failed" not in message, (name, message)


def test_into_a_container(
    agent: SmallAgent,
    work: Workstation,
    container: Pretended,
    leftovers: Callable[[], list[Path | str]],
) -> None:
    """What a client sends that does not look at it, and wants owners kept.

    Without that, it is sent to a container of a real node (``tests/node/test_container_cp.py``).
    """
    assert len(SMALL) >= 40
    for index, (name, case) in enumerate(SMALL.items()):
        with refused(name, container.root / f"case{index}"):
            work.archive_into(case.data, f"/case{index}/dest", archive=True)
    assert {*agent.audits} == {"failed"}
    assert [*stages_in(container.root), *leftovers()] == []


def test_out_of_a_node(
    agent: SmallAgent, work: Workstation, container: Pretended, tmp_path: Path
) -> None:
    for index, (name, case) in enumerate(SMALL.items()):

        def make(write: Write, _: Watch, data: bytes = case.data) -> None:
            if data:
                write(memoryview(data))

        agent.engine.make = make
        # The archive of "DIR/." has no top of its own, as the corpus has none.
        with refused(name, tmp_path / f"case{index}"):
            work.out("/to/.", tmp_path / f"case{index}/dest")
    assert (work.notes, work.kept) == ([], [])
    assert list((container.root / "to").iterdir()) == []
