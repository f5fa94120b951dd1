"""Where copies are kept while they run."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from pycrictl.errors import CopyError
from pycrictl.kubectl.copies.saved import CopyRecord, Saved

RECORD = CopyRecord((), "shop", "web", "", "/f", "/f", "From", "0" * 32)
NO_HOME = {"HOME": "/dev/null"}


@pytest.mark.parametrize("environ", [NO_HOME, {"HOME": "nowhere"}], ids=["file", "unknown user"])
def test_without_a_home_that_can_be_written(environ: dict[str, str]) -> None:
    notes: list[str] = []
    saved = Saved(environ, notes.append)
    kept = saved.keep(RECORD)
    assert list(kept.arrived()) == []
    kept.append(memoryview(b"abc"), 0)
    kept.touch()
    kept.release()
    assert saved.find(RECORD) is None
    saved.close()
    (note,) = notes
    assert note.startswith('cannot keep copies in "')
    assert note.endswith("; if this is killed, it begins anew")


def test_files_of_others_and_of_other_versions_stay(tmp_path: Path) -> None:
    folder = tmp_path / "pycrictl/copies"
    folder.mkdir(parents=True)
    old = time.time() - 3600
    stay = ["notes.json", "notes.part", f"{'A' * 32}.json", f"{'1' * 32}.json", f"{'1' * 32}.part"]
    go = [f"{'2' * 32}.json", f"{'2' * 32}.part", f"{'3' * 32}.json"]
    for name in (*stay, *go):
        (folder / name).write_text('{"version": 2}')
        if "1" not in name:
            os.utime(folder / name, (old, old))
    saved = Saved({"XDG_STATE_HOME": str(tmp_path)}, pytest.fail)
    assert saved.find(RECORD) is None
    saved.close()
    assert {one.name for one in folder.iterdir()} == {*stay}


def test_somebody_looks_at_a_copy_that_begins(tmp_path: Path) -> None:
    saved = Saved({"XDG_STATE_HOME": str(tmp_path)}, pytest.fail)
    name = tmp_path / "pycrictl/copies" / f"{RECORD.session}.json"
    with name.open("w") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        release = threading.Timer(0.2, fcntl.flock, (theirs, fcntl.LOCK_UN))
        release.start()
        try:
            kept = saved.keep(RECORD)
        finally:
            release.join()
    found = Saved({"XDG_STATE_HOME": str(tmp_path)}, pytest.fail).find(RECORD)
    assert found is None  # it is locked
    kept.remove()
    assert not name.exists()


def test_no_space_for_what_a_copy_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = Saved({"XDG_STATE_HOME": str(tmp_path)}, pytest.fail)
    folder = tmp_path / "pycrictl/copies"

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(CopyError) as caught:
        saved.keep(RECORD)
    assert caught.value.message == f'cannot keep the copy in "{folder}": no space left on device'
    assert [*folder.iterdir()] == []


def test_no_space_for_what_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    kept = Saved({"XDG_STATE_HOME": str(tmp_path)}, notes.append).keep(RECORD)
    assert list(kept.arrived()) == []
    kept.append(memoryview(b"abc"), 0)
    folder = tmp_path / "pycrictl/copies"
    assert (folder / ("0" * 32 + ".part")).read_bytes() == b"abc"

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr(os, "pwrite", full)
    kept.append(memoryview(b"def"), 3)
    kept.append(memoryview(b"ghi"), 6)
    assert notes == [
        "cannot keep what arrives: no space left on device; if this is killed, it begins anew"
    ]
    assert [one.suffix for one in folder.iterdir()] == [".json"]
    kept.remove()
