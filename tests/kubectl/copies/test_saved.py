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


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / f"pycrictl-{os.geteuid()}"


def test_without_a_home_that_can_be_written(temporary: Path) -> None:
    notes: list[str] = []
    saved = Saved(NO_HOME, notes.append)
    kept = saved.keep(RECORD)
    assert [one.name for one in temporary.iterdir()] == ["0" * 32 + ".json"]
    assert temporary.stat().st_mode & 0o777 == 0o700
    kept.release()
    found = Saved(NO_HOME, notes.append).find(RECORD)
    assert found is not None
    found.remove()
    assert [*temporary.iterdir()] == []
    assert len(notes) == 2
    assert notes[0].startswith(f'copies are kept in "{temporary}", not in "/dev/null/.local/')
    assert notes[0].endswith(": not a directory")


def test_a_user_whom_the_system_does_not_know(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", unknown)
    Saved({"XDG_STATE_HOME": str(temporary.parent)}, pytest.fail).close()  # not asked for it
    notes: list[str] = []
    Saved({}, notes.append).close()
    assert notes == [f'copies are kept in "{temporary}", not in a home: this user has none']
    temporary.chmod(0o755)
    with pytest.raises(CopyError, match=r"cannot keep copies in a home: .* none, nor in "):
        Saved({}, pytest.fail)


@pytest.mark.parametrize("make", [lambda path: path.mkdir(0o755), lambda path: path.touch()])
def test_a_folder_of_somebody_else(temporary: Path, make: object) -> None:
    assert callable(make)
    make(temporary)
    with pytest.raises(CopyError, match=r'nor in ".*": (not a directory|operation not permitted)'):
        Saved(NO_HOME, pytest.fail)


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


def test_no_space_for_what_arrives(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    kept = Saved(NO_HOME, notes.append).keep(RECORD)
    assert list(kept.arrived()) == []
    kept.append(memoryview(b"abc"), 0)
    assert (temporary / ("0" * 32 + ".part")).read_bytes() == b"abc"

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr(os, "pwrite", full)
    kept.append(memoryview(b"def"), 3)
    kept.append(memoryview(b"ghi"), 6)
    assert notes[1:] == [
        "cannot keep what arrives: no space left on device; if this is killed, it begins anew"
    ]
    assert [one.suffix for one in temporary.iterdir()] == [".json"]
    kept.remove()
