"""Which folders an agent takes for its sessions, and what it leaves alone in them."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from pycrictl.agent.copies.session import CopyPhase, CopySpec, Direction, Owner, Place, Session
from pycrictl.agent.copies.store import Store
from pycrictl.errors import ConfigError

NAME = "0123456789abcdef" * 2
FOREIGN = ("passwd", "README", f"{NAME}.tar.gz", f"x{NAME}.tar", NAME, ".hidden")


def state(folder: Path) -> dict[str, tuple[int, str | None]]:
    """Modes and contents of a folder and of what is in it."""
    return {
        str(path): (path.stat().st_mode, path.read_text() if path.is_file() else None)
        for path in (folder, *folder.iterdir())
    }


@pytest.mark.parametrize("name", [*FOREIGN, "lock"])
@pytest.mark.parametrize("is_linked", [False, True])
def test_a_folder_with_other_files_is_left_as_it_is(
    tmp_path: Path, name: str, is_linked: bool
) -> None:
    """Somebody has typed /etc: nothing of it may change."""
    folder = tmp_path / "etc"
    folder.mkdir(0o755)
    (folder / name).write_text("content")
    (folder / "hosts").write_text("content")
    (tmp_path / "link").symlink_to(folder)
    before = state(folder)
    with pytest.raises(ConfigError, match=r"there are other files in it, such as \""):
        Store(str(tmp_path / "link" if is_linked else folder))
    assert state(folder) == before


def test_a_folder_with_somebody_elses_lock(tmp_path: Path) -> None:
    """Such as /var/lib/dpkg."""
    (tmp_path / "status").write_text("content")
    (tmp_path / "lock").touch(0o640)
    tmp_path.chmod(0o755)
    before = state(tmp_path)
    with pytest.raises(ConfigError, match="such as"):
        Store(str(tmp_path))
    assert state(tmp_path) == before


@pytest.mark.parametrize("mode", [0o1777, 0o1700])
def test_a_folder_for_everybodys_files(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(ConfigError, match="is not a folder of this user alone"):
        Store(str(tmp_path))
    assert (stat.S_IMODE(tmp_path.stat().st_mode), list(tmp_path.iterdir())) == (mode, [])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_folder_of_another_user(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, -1)
    with pytest.raises(ConfigError, match="is not a folder of this user alone"):
        Store(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def empty(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)  # as an emptyDir of Kubernetes has it


def own_disk(folder: Path) -> None:
    (folder / "lost+found").mkdir(parents=True)


@pytest.mark.parametrize("prepare", [empty, own_disk, lambda _: None])
def test_a_folder_that_is_taken(tmp_path: Path, prepare: Callable[[Path], None]) -> None:
    folder = tmp_path / "copies"
    prepare(folder)
    with closing(Store(str(folder))) as store:
        assert store.load() == []
        with pytest.raises(ConfigError, match="another agent keeps its copies"):
            Store(str(folder))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (folder / "lock").exists()


def test_only_an_agents_own_files_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "copies"
    Store(str(folder)).close()
    for name in FOREIGN:
        (folder / name).write_text("content")
    for suffix in ("json", "tar", "new"):
        (folder / f"{NAME}.{suffix}").write_text("[]")
    os.mkfifo(folder / f"{NAME[::-1]}.json")
    (folder / f"{'a' * 32}.json").mkdir()
    (folder / f"{'b' * 32}.json").symlink_to("README")
    with closing(Store(str(folder))) as store:
        assert store.load() == []
    aside = {f"{name}.damaged" for name in (NAME, NAME[::-1], "b" * 32)}
    left = {*FOREIGN, "lock", f"{'a' * 32}.json"}
    assert {path.name for path in folder.iterdir()} == left | aside
    assert (folder / "README").read_text() == "content"
    with closing(Store(str(folder))) as store:
        assert store.load() == []
    assert {path.name for path in folder.iterdir()} == left


WHOLE = Session(
    NAME,
    Owner("jane"),
    Place("shop", "web", "uid1", "main"),
    CopySpec(Direction.TO, b"/to/f", size_bytes=5, crc32=7),
    CopyPhase.TRANSFERRING,
)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[" * 100_000,
        b"7",
        b"\xff",
        json.dumps(WHOLE.saved() | {"size_bytes": -1}).encode(),
        json.dumps(WHOLE.saved() | {"offset": 10**400}).encode(),
        json.dumps(WHOLE.saved() | {"offset": "5"}).encode(),
        json.dumps(WHOLE.saved() | {"owner": {"name": 5}}).encode(),
        json.dumps(WHOLE.saved() | {"place": []}).encode(),
        json.dumps(WHOLE.saved() | {"outcome": [1]}).encode(),
        json.dumps(WHOLE.saved() | {"phase": ["x"]}).encode(),
        None,
    ],
)
def test_a_damaged_session_is_set_aside(
    tmp_path: Path, text: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    other = replace(WHOLE, name="c" * 32)
    with closing(Store(str(tmp_path))) as store:
        for session in (WHOLE, other):
            store.save(session)
            store.open_archive(session, is_new=True).close()
        path = tmp_path / f"{NAME}.json"
        if text is None:
            os.truncate(path, 1 << 40)  # sparse
        else:
            path.write_bytes(text)
        assert store.load() == [other]
    assert {one.name for one in tmp_path.iterdir()} == {
        *("lock", f"{NAME}.damaged", f"{other.name}.json", f"{other.name}.tar")
    }
    assert caplog.text.count("damaged_copy") == 1
