"""The files in which copies are saved while they run."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pycrictl.copy.rules.spec import ContainerPath
from pycrictl.errors import CopyError
from pycrictl.kubectl.copies import over_api
from pycrictl.kubectl.copies.saved import CopyRecord, Saved
from tests.copy.trees import UNWATCHED

RECORD = CopyRecord((), "shop", "web", "/f", {"path": "/f"}, "0" * 32)
NAME = f"{RECORD.session}.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "pycrictl/copies"


def saved_in(folder: Path, note: Callable[[str], None] = pytest.fail) -> Saved:
    return Saved({"XDG_STATE_HOME": str(folder.parents[1])}, note)


@pytest.mark.parametrize("home", ["/dev/null", "nowhere"], ids=["file", "unknown user"])
def test_without_a_home_that_can_be_written(home: str) -> None:
    notes: list[str] = []
    saved = Saved({"HOME": home}, notes.append)
    saved.keep(RECORD)
    assert list(saved.arrived()) == []
    saved.append(memoryview(b"abc"), 0)
    saved.touch()
    saved.release()
    assert not saved.take_up(RECORD)
    (note,) = notes
    assert note.startswith('cannot keep copies in "')
    assert note.endswith("; if killed, it cannot be resumed")


def test_files_of_others_and_of_other_versions_stay(folder: Path) -> None:
    folder.mkdir(parents=True)
    old = time.time() - 3600
    stay = ["notes.json", "notes.part", f"{'A' * 32}.json", f"{'1' * 32}.json", f"{'1' * 32}.part"]
    go = [f"{'2' * 32}.json", f"{'2' * 32}.part", f"{'3' * 32}.json"]
    for name in (*stay, *go):
        (folder / name).write_text('{"version": 2}')
        if "1" not in name:
            os.utime(folder / name, (old, old))
    assert not saved_in(folder).take_up(RECORD)
    assert {one.name for one in folder.iterdir()} == {*stay}


def test_somebody_looks_at_a_copy_that_begins(folder: Path) -> None:
    saved = saved_in(folder)
    with (folder / NAME).open("w") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        release = threading.Timer(0.2, fcntl.flock, (theirs, fcntl.LOCK_UN))
        release.start()
        saved.keep(RECORD)
        release.join()
    assert not saved_in(folder).take_up(RECORD)  # it is locked now
    saved.remove()
    assert not (folder / NAME).exists()


def test_no_option_is_saved_in_clear(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same options still find the copy again."""
    proxy = nullcontext(SimpleNamespace(target=None))
    monkeypatch.setattr(over_api, "KubectlProxy", lambda *_: proxy)

    def record(token: str) -> CopyRecord:
        with over_api.in_cluster(
            ContainerPath("", "web", b"/f"),
            UNWATCHED,
            options=(f"--token={token}",),
            environ={"XDG_STATE_HOME": str(folder.parents[1])},
            namespace="shop",
            container="",
            local="-",
            retries=None,
            resume=False,
        ) as (method,):
            return method.record

    saved = saved_in(folder)
    saved.keep(replace(record("hunter2"), session=RECORD.session))
    assert "hunter2" not in (folder / NAME).read_text()
    saved.release()
    assert not saved_in(folder).take_up(record("hunter3"))
    assert saved_in(folder).take_up(record("hunter2"))


def test_no_space(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without space for its record, a copy does not start; received data need not be saved."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "")

    notes: list[str] = []
    saved = saved_in(folder, notes.append)
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(CopyError) as caught:
            saved.keep(RECORD)
    assert caught.value.message == f'cannot keep the copy in "{folder}": no space left on device'
    assert [*folder.iterdir()] == []

    saved.keep(RECORD)
    assert list(saved.arrived()) == []
    saved.append(memoryview(b"abc"), 0)
    assert (folder / NAME).with_suffix(".part").read_bytes() == b"abc"
    monkeypatch.setattr(os, "pwrite", full)
    saved.append(memoryview(b"def"), 3)
    saved.append(memoryview(b"ghi"), 6)
    assert notes == [
        "cannot keep what arrives: no space left on device; if killed, it cannot be resumed"
    ]
    assert [one.name for one in folder.iterdir()] == [NAME]
    saved.remove()
