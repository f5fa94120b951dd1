"""Copies from and to a directory that its container exchanges for a link to the node's files."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Final

from pycrictl.copy import ends
from pycrictl.copy.method import Method
from pycrictl.copy.rules.policy import Rules
from pycrictl.errors import PycrictlError
from tests.copy.node.test_on_node import UNWATCHED
from tests.copy.racer import flipping
from tests.copy.trees import listing, stages_in

SECRET: Final = "SECRET OF THE NODE"


def make_playground(play: Path, outside: Path, link: str | None = None) -> None:
    (play / "dir/sub").mkdir(parents=True)
    (outside / "sub").mkdir(parents=True)
    for path in ("data", "sub/data"):
        (outside / path).write_text(SECRET)
        (play / "dir" / path).write_text("of the container")
    (play / "evil").symlink_to(link or outside)


def race(method: Method, play: Path, path: str, folder: Path, *, at_least_s: float) -> None:
    """Copy meanwhile: what is outside is neither read nor changed.

    Args:
        method: how.
        play: a new directory of the container.
        path: the same, as the container names it.
        folder: an empty one of the node.
        at_least_s: for how long.
    """
    outside, local = folder / "outside", folder / "local"
    make_playground(play, outside)
    local.mkdir()
    (folder / "data").write_text("from the user")
    before = listing(outside)
    ended = {"done": 0, "failed": 0}
    with flipping(play, "dir", "evil"):
        enough_at, number = time.monotonic() + at_least_s, 0
        while (now := time.monotonic()) < enough_at or (
            min(ended.values()) <= 3 and now < enough_at + 60
        ):
            number += 1
            for attempt in (
                partial(ends.copy_to, method, bytes(folder / "data"), f"{path}/dir/data".encode()),
                partial(ends.copy_to, method, bytes(folder / "data"), f"{path}/dir/sub".encode()),
                partial(
                    ends.copy_from, method, f"{path}/dir/sub".encode(), bytes(local / f"{number}")
                ),
            ):
                try:
                    attempt(Rules(), UNWATCHED)
                    ended["done"] += 1
                except PycrictlError:
                    ended["failed"] += 1
    assert listing(outside) == before
    assert [path for path in local.rglob("data") if SECRET in path.read_text()] == []
    assert min(ended.values()) > 3, ended
    assert stages_in(play) == []
