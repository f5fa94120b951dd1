"""Copies from and to a directory that its container exchanges for a link to the node's files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from pycrictl.copy import ends
from pycrictl.copy.method import Method
from pycrictl.copy.rules.policy import Rules
from pycrictl.errors import PycrictlError
from tests.copy.racer import flipping
from tests.copy.trees import UNWATCHED, listing, stages_in

SECRET: Final = "SECRET OF THE NODE"


AT_LEAST_S: Final = 1.0


def race(method: Method, play: Path, path: str, folder: Path, *, is_relative: bool = False) -> None:
    """Copy meanwhile: what is outside is neither read nor changed."""
    outside, local = folder / "outside", folder / "local"
    (play / "dir/sub").mkdir(parents=True)
    (outside / "sub").mkdir(parents=True)
    for name in ("data", "sub/data"):
        (outside / name).write_text(SECRET)
        (play / "dir" / name).write_text("of the container")
    (play / "evil").symlink_to(f"../../../../../..{outside}" if is_relative else outside)
    local.mkdir()
    (folder / "tree").mkdir()
    for name in ("data", "tree/data"):
        (folder / name).write_text("from the user")
    before = listing(outside)
    ended = {"done": 0, "failed": 0}
    with flipping(play, "dir", "evil"):
        enough_at, number = time.monotonic() + AT_LEAST_S, 0
        while (now := time.monotonic()) < enough_at or (
            min(ended.values()) <= 3 and now < enough_at + 60
        ):
            number += 1
            for act, source, target in (
                (ends.copy_to, f"{folder}/data", f"{path}/dir/data"),
                (ends.copy_to, f"{folder}/data", f"{path}/dir/sub"),
                (ends.copy_to, f"{folder}/tree/.", f"{path}/dir/sub"),
                (ends.copy_from, f"{path}/dir/sub", f"{local}/{number}"),
                (ends.copy_from, path, f"{local}/tree-{number}"),
            ):
                try:
                    act(method, source.encode(), target.encode(), Rules(), UNWATCHED)
                    ended["done"] += 1
                except PycrictlError:
                    ended["failed"] += 1
    assert listing(outside) == before
    copied = [path for path in local.rglob("*") if path.is_file() and not path.is_symlink()]
    assert [path for path in copied if SECRET in path.read_text()] == []
    assert min(ended.values()) > 3, ended
    assert stages_in(play) == []
