"""Packing trees into archives, measuring archives, and unpacking them."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from pycrictl.base.errors import CopyError
from pycrictl.copy.archive.pack import measure, pack, report_total
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.tree import walk
from pycrictl.copy.tree.places import THIS_MACHINE, open_source
from pycrictl.copy.tree.walk import Watch
from tests.copy.hostile import FOLDER, LINK, archive, member
from tests.copy.trees import KEEP, MIB, Archive, contents, ignore, put_at, stages_in


def test_a_single_top_only(tmp_path: Path) -> None:
    new = tmp_path / "new"
    for data, name, line in (
        (archive(member(b"x"), member(b"y")), None, 'not below "x"'),
        (archive(member(b"y")), b"x", 'not below "x"'),
        (archive(), b"x", "the archive is empty"),
    ):
        with pytest.raises(CopyError, match=line):
            put_at(new, Archive([data], single=True, name=name))
        assert not new.exists()
    put_at(new, Archive([archive(member(b"x/y", data=b"1"))], single=True, name=b"x"))
    assert (new / "y").read_text() == "1"


def test_times_that_cannot_be_kept_are_said(tmp_path: Path) -> None:
    own = partial(member, uid=os.geteuid(), gid=os.getegid())
    files = own(b"d/far", mtime_s=2**40), own(b"d/fine", mtime_s=-1_000_000_000)
    made = archive(own(b"d", FOLDER, mode=0o755), *files)
    notes: list[str] = []
    put_at(tmp_path / "new", Archive([made], single=True), KEEP, note=notes.append)
    assert notes == ["the time of some entries could not be kept: not supported, or not permitted"]
    assert (tmp_path / "new/fine").stat().st_mtime == -1_000_000_000
    put_at(tmp_path / "plain", Archive([made], single=True), note=notes.append)
    assert len(notes) == 1


@pytest.mark.parametrize(
    ("destination", "data", "made"),
    [
        ("into", archive(member(b"a/b")), {"f": "old", "into/a/b": ""}),
        ("f", archive(member(b"x")), {"f": ""}),
    ],
)
def test_nothing_is_visible_before_the_end(
    tmp_path: Path, destination: str, data: bytes, made: dict[str, str]
) -> None:
    (tmp_path / "into").mkdir()
    (tmp_path / "f").write_text("old")

    def coming() -> Iterator[bytes]:
        yield data
        [stage] = stages_in(tmp_path)
        assert stat.S_IMODE(stage.stat().st_mode) == 0o700
        copied = contents(tmp_path)
        assert {name: copied[name] for name in copied if ".pycrictl-" not in name} == {"f": "old"}

    put_at(tmp_path / destination, Archive(coming(), single=destination == "f"))
    assert contents(tmp_path) == made


def test_the_directory_of_an_archive_keeps_its_own_mode(tmp_path: Path) -> None:
    into = tmp_path / "into"
    into.mkdir(mode=0o751)
    data = archive(
        member(b".", FOLDER, mode=0o711, mtime_s=5),
        member(b"d/x", data=b"1"),
        member(b"l", LINK, link=b"d/x"),
    )
    put_at(into, Archive([data]))
    assert stat.S_IMODE(into.stat().st_mode) == 0o751
    assert stat.S_IMODE((into / "d").stat().st_mode) == 0o755
    put_at(into, Archive([data]), KEEP)
    assert stat.S_IMODE(into.stat().st_mode) == 0o711
    assert into.stat().st_mtime_ns == 5 * 10**9


def test_what_is_measured_is_what_is_packed(tmp_path: Path) -> None:
    top = tmp_path / "d"
    top.mkdir()
    for number, size in enumerate((0, 1, 262_143, 262_144, 3 * MIB + 5)):
        (top / str(number)).write_bytes(os.urandom(size))
    with (top / "sparse").open("wb") as file:
        file.seek(2 * MIB)
        file.write(os.urandom(MIB))
        file.truncate(5 * MIB)
    sizes: list[int] = []
    with open_source(THIS_MACHINE, os.fsencode(top)) as opened:
        whole = b"".join(map(bytes, pack(opened, on_skip=ignore)))
        for offset in (1, 300_000, 4 * MIB, len(whole)):
            rest = b"".join(map(bytes, pack(opened, on_skip=ignore, offset=offset)))
            assert rest == whole[offset:]
        measured = measure(opened, on_skip=ignore, check=sizes.append)
    assert (measured.size_bytes, measured.crc32) == (len(whole), zlib.crc32(whole))
    assert sizes == sorted(sizes)
    assert sizes[-1] == len(whole)
    summary = measured.summary
    assert (summary.files, summary.directories) == (6, 1)
    assert summary.size_bytes == sum(path.stat().st_size for path in top.iterdir())


def test_the_total_opens_no_file(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tree / "pipe")
    sizes: list[int] = []
    with open_source(THIS_MACHINE, os.fsencode(tree)) as opened:
        made = sum(len(piece) for piece in pack(opened, on_skip=ignore))
        monkeypatch.delattr(walk, "reopen_regular")
        report_total(opened, Watch(ignore, ignore, on_archive=sizes.append))
    assert sizes == [made]


def test_measuring_ends_where_it_is_too_much(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    os.truncate(tmp_path / "f", 1 << 40)  # this would take an hour
    with open_source(THIS_MACHINE, os.fsencode(tmp_path / "f")) as opened:
        with pytest.raises(CopyError, match="more than 1048576 bytes would be copied"):
            measure(opened, on_skip=ignore, rules=Rules(max_size_bytes=MIB))
