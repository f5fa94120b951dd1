"""One thing at a time beside the rest, and writing that way."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path

import pytest

from pycrictl.copy.archive import Unpacker
from pycrictl.copy.beside import WORTH_BYTES, Beside
from pycrictl.copy.content import SparseWriter
from pycrictl.copy.places import LocalRoot, open_destination
from pycrictl.copy.policy import Rules
from pycrictl.errors import CopyError
from tests.copy.hostile import FILE, archive, member, snapshot

LARGE = 4 * WORTH_BYTES


def test_results_come_once() -> None:
    beside = Beside[int]()
    assert beside.wait() is None
    beside.start(lambda: 7)
    assert beside.wait() == 7
    assert beside.wait() is None
    beside.start(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        beside.wait()
    assert beside.wait() is None
    beside.close()


def test_closing_waits_and_keeps_silent() -> None:
    beside, go_on, done = Beside[None](), threading.Event(), threading.Event()

    def work() -> None:
        assert go_on.wait(60)
        done.set()
        raise OSError

    beside.start(work)
    threading.Timer(0.05, go_on.set).start()
    beside.close()
    beside.close()
    assert done.is_set()


def test_two_buffers_in_turn_are_enough(tmp_path: Path) -> None:
    beside = Beside[None]()
    buffers = [memoryview(bytearray(LARGE)) for _ in range(2)]
    with (tmp_path / "f").open("w+b") as file:
        writer = SparseWriter(file.fileno(), 41 * LARGE, beside=beside)
        for number in range(40):
            buffers[number % 2][:] = bytes([number + 1]) * LARGE
            writer.write(buffers[number % 2])
            writer.write(memoryview(b"small"))
        writer.finish()
    beside.close()
    expected = b"".join(bytes([number + 1]) * LARGE + b"small" for number in range(40))
    assert (tmp_path / "f").read_bytes() == expected


@pytest.mark.parametrize("is_last", [True, False])
def test_what_fails_beside_is_told_in_front(tmp_path: Path, is_last: bool) -> None:
    data = archive(member(b"f", FILE, os.urandom(3 * LARGE)), member(b"g", FILE, b"1"))
    step = len(data) if is_last else LARGE
    before = snapshot(tmp_path)
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    with (
        open_destination(LocalRoot(), bytes(tmp_path)) as place,
        Unpacker(place, Rules(), on_skip=print, single=False, is_beside=True) as unpacker,
    ):

        def unpack() -> None:
            for start in range(0, len(data), step):
                unpacker.receive_data(data[start : start + step])
            unpacker.finish()

        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGE, former[1]))
        try:
            with pytest.raises(CopyError, match="file too large"):
                unpack()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, former)
    assert snapshot(tmp_path) == before
