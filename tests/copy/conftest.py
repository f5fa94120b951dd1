"""Fixtures: a tree to copy, a folder of stage notes per test, and a check for leftovers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pycrictl.copy.tree.commit import STAGE_NAME, VARIABLE
from pycrictl.copy.tree.rootfs import own_descriptors
from tests.copy.trees import tree
from tests.waiting import settled

__all__ = ["tree"]


def open_fds() -> set[str]:
    """Return this process's open descriptors, including the cached one of ``own_descriptors``.

    The eventfds of gRPC's threads are left out: a fork renumbers them. The descriptor that listed
    the folder is closed by the time its link is read.
    """
    own_descriptors()
    types = set()
    for path in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):
            if str(path.readlink()) != "anon_inode:[eventfd]":
                types.add(path.name)
    return types


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    """No test leaves a stage or an open descriptor behind."""
    before = open_fds()
    yield
    # An earlier test may close some of its descriptors late.
    assert settled(lambda: open_fds() <= before), open_fds() - before
    names = [os.fsencode(path.name) for path in tmp_path.rglob("*")]
    assert not any(STAGE_NAME.fullmatch(name) for name in names)


@pytest.fixture(autouse=True)
def noted(
    nothing_is_left: None,  # it checks after monkeypatch has undone its changes
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    folder = tmp_path_factory.mktemp("noted")
    monkeypatch.setenv(VARIABLE, str(folder))
    return folder
