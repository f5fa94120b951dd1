"""Packing, unpacking and copying trees: what arrives, and what is left when it does not."""

from __future__ import annotations

import errno
import os
import resource
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pycrictl.copy import content
from pycrictl.copy.archive import FilePart, Unpacker, pack, pack_unread
from pycrictl.copy.arrival import Arrival, Summary
from pycrictl.copy.commit import Merge
from pycrictl.copy.content import SparseWriter, copy_content, segments
from pycrictl.copy.janitor import STAGE_NAME, random_name
from pycrictl.copy.places import LocalRoot, open_destination, open_source
from pycrictl.copy.policy import Rules, Skipped
from pycrictl.copy.resolve import own_descriptors
from pycrictl.copy.rootfs import Directory
from pycrictl.copy.tree import TreeCopy
from pycrictl.errors import CopyError, EntryRefused, StreamError
from pycrictl.wire.tar_header import Entry, Kind
from pycrictl.wire.tar_writer import END_OF_ARCHIVE
from tests.copy.hostile import FOLDER, LINK, archive, member, snapshot
from tests.copy.over_quota import exceeding_quota

PLAIN = Rules()
KEEP = Rules(archive=True)
LOCAL = LocalRoot()
MIB = 1024 * 1024

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
Copy = Callable[..., Summary]


def ignore(_: object) -> None:
    pass


def directly(
    source: Path | str,
    destination: Path | str,
    rules: Rules = PLAIN,
    *,
    follow: bool = False,
    on_skip: Callable[[Skipped], None] = ignore,
) -> Summary:
    with (
        open_source(LOCAL, os.fsencode(source), follow=follow) as found,
        open_destination(LOCAL, os.fsencode(destination)) as place,
        TreeCopy(place, rules, on_skip=on_skip) as copy,
    ):
        copy.run(found, on_bytes=ignore)
        return copy.commit()


def by_archive(
    source: Path | str,
    destination: Path | str,
    rules: Rules = PLAIN,
    *,
    follow: bool = False,
    on_skip: Callable[[Skipped], None] = ignore,
) -> Summary:
    with (
        open_source(LOCAL, os.fsencode(source), follow=follow) as found,
        open_destination(LOCAL, os.fsencode(destination)) as place,
        Unpacker(place, rules, on_skip=on_skip, name=found.top) as unpacker,
    ):
        size_bytes = 0
        for piece in pack(found, on_skip=on_skip):
            size_bytes += len(piece)
            unpacker.receive_data(piece)
        return unpacker.finish(size_bytes=size_bytes)


def unpack(data: bytes, destination: Path, rules: Rules = PLAIN) -> Summary:
    with (
        open_destination(LOCAL, os.fsencode(destination)) as place,
        Unpacker(place, rules, on_skip=ignore, single=False) as unpacker,
    ):
        unpacker.receive_data(data)
        return unpacker.finish()


both_ways = pytest.mark.parametrize("copy", [directly, by_archive])


def open_fds() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path) -> Iterator[None]:
    """No test leaves a stage or an open descriptor behind."""
    own_descriptors()  # stays open
    before = open_fds()
    yield
    assert open_fds() == before
    names = [os.fsencode(path.name) for path in tmp_path.rglob("*")]
    assert not any(STAGE_NAME.fullmatch(name) for name in names)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "tree"
    (top / "sub/empty").mkdir(parents=True)
    (top / "f").write_text("hello")
    (top / "sub/big").write_bytes(os.urandom(MIB + 77))
    (top / "sub/hard").hardlink_to(top / "f")
    (top / "sub/up").symlink_to("../f")
    (top / os.fsdecode(b"\xff\n")).write_text("odd")
    (top / "f").chmod(0o751)
    (top / "sub").chmod(0o550)
    for path in (*top.rglob("*"), top):
        os.utime(path, ns=(1, 1_234_567_890_987_654_321), follow_symlinks=False)
    return top


def listing(top: Path) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for path in (top, *top.rglob("*")):
        status = path.lstat()
        inner: object = path.readlink() if path.is_symlink() else None
        if path.is_file() and not path.is_symlink():
            inner = (status.st_nlink, path.read_bytes())
        found[str(path.relative_to(top))] = (status.st_mode, status.st_mtime_ns, inner)
    return found


# Whole copies


@both_ways
def test_everything_is_kept(copy: Copy, tree: Path, tmp_path: Path) -> None:
    summary = copy(tree, tmp_path / "new", KEEP)
    assert listing(tmp_path / "new") == listing(tree)
    assert summary == Summary(files=4, directories=3, links=1, size_bytes=MIB + 77 + 8)


@both_ways
def test_a_second_copy_changes_nothing(copy: Copy, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "into").mkdir()
    copy(tree, tmp_path / "into", KEEP)
    assert listing(tmp_path / "into/tree") == listing(tree)
    copy(tree, tmp_path / "into", KEEP)
    assert listing(tmp_path / "into/tree") == listing(tree)
    copy(f"{tree}/.", tmp_path / "into/tree", KEEP)
    assert listing(tmp_path / "into/tree") == listing(tree)


@both_ways
def test_contents_go_into_a_directory(copy: Copy, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "into").mkdir()
    (tmp_path / "into/kept").write_text("kept")
    copy(f"{tree}/.", tmp_path / "into")
    assert {path.name for path in (tmp_path / "into").iterdir()} == {
        *("kept", "f", "sub"),
        os.fsdecode(b"\xff\n"),
    }


@both_ways
def test_links_as_the_source(copy: Copy, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "to-tree").symlink_to("tree")
    (tmp_path / "to-nothing").symlink_to("/nonexistent")
    copy(tmp_path / "to-tree", tmp_path / "l")
    assert (tmp_path / "l").readlink() == Path("tree")
    copy(f"{tmp_path}/to-tree/", tmp_path / "followed")
    assert (tmp_path / "followed/f").read_text() == "hello"
    copy(tmp_path / "to-tree", tmp_path / "followed-2", follow=True)
    assert (tmp_path / "followed-2/f").read_text() == "hello"
    with pytest.raises(CopyError, match="it leads out") as info:
        copy(tmp_path / "to-nothing", tmp_path / "m")
    assert "-L" in str(info.value.hint)
    assert not (tmp_path / "m").is_symlink()
    copy(tree / "f", tmp_path / "to-nothing")  # replaced, not written through
    assert not (tmp_path / "to-nothing").is_symlink()
    assert (tmp_path / "to-nothing").read_text() == "hello"
    copy(tree / "f", tmp_path / "to-tree")  # a link to a directory is the directory
    assert (tmp_path / "to-tree").is_symlink()
    assert (tree / "f").read_text() == "hello"


@both_ways
def test_what_is_no_file_is_skipped(copy: Copy, tree: Path, tmp_path: Path) -> None:
    os.mkfifo(tree / "pipe")
    (tree / random_name().decode()).mkdir()
    (tree / "abs").symlink_to("/etc/passwd")
    skipped: list[Skipped] = []
    summary = copy(tree, tmp_path / "new", on_skip=skipped.append)
    assert {each.path: each.rule for each in skipped} == {
        b"tree/pipe": "special",
        b"tree/abs": "outward-link",
    }
    assert not (tmp_path / "new/pipe").exists()
    assert summary.files == 4
    for path in (tree / "pipe", Path("/dev/null")):
        with pytest.raises(CopyError, match="never copied"):
            copy(path, tmp_path / "x")
    (next(tree.glob(".pycrictl-*"))).rmdir()


@both_ways
def test_wrong_sources(copy: Copy, tree: Path, tmp_path: Path) -> None:
    with pytest.raises(CopyError, match="no such file"):
        copy(tree / "nothing", tmp_path / "x")
    for wrong in (f"{tree}/f/", f"{tree}/f/."):
        with pytest.raises(CopyError, match=r"not a directory"):
            copy(wrong, tmp_path / "x")
    with pytest.raises(CopyError, match="there is no directory"):
        copy(tree, tmp_path / "no/where")
    with pytest.raises(CopyError, match="there is no directory"):
        copy(tree / "f", tree / "f/x")
    with pytest.raises(CopyError, match="file name too long"):
        copy(tree / "f", tmp_path / ("n" * 256))
    assert not (tmp_path / "x").exists()


@both_ways
def test_sizes_are_limited(copy: Copy, tree: Path, tmp_path: Path) -> None:
    before = listing(tmp_path)
    with pytest.raises(EntryRefused, match="more than 100 bytes"):
        copy(tree, tmp_path / "new", Rules(max_size_bytes=100))
    with pytest.raises(EntryRefused, match="3th entry"):
        copy(tree, tmp_path / "new", Rules(max_entries=2))
    with pytest.raises(EntryRefused, match="more than 4 bytes"):
        copy(tree / "f", tmp_path / "new", Rules(max_size_bytes=4))
    after = listing(tmp_path)
    assert {name: each[2] for name, each in after.items()} == {
        name: each[2] for name, each in before.items()
    }
    copy(tree / "f", tmp_path / "new", Rules(max_size_bytes=5))


@both_ways
def test_a_sparse_file(copy: Copy, tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(200 * MIB)
        file.seek(100 * MIB)
        file.write(b"x")
    copy(tmp_path / "sparse", tmp_path / "new")
    status = (tmp_path / "new").stat()
    assert status.st_size == 200 * MIB
    assert status.st_blocks * 512 < MIB
    with (tmp_path / "new").open("rb") as file:
        file.seek(100 * MIB - 1)
        assert file.read(3) == b"\0x\0"


@both_ways
def test_a_deep_tree(copy: Copy, tmp_path: Path) -> None:
    deep = tmp_path / "deep"
    for count, is_accepted in ((500, True), (520, False)):
        inner = deep.joinpath(*["d"] * count)
        inner.mkdir(parents=True, exist_ok=True)
        if is_accepted:
            copy(deep, tmp_path / "new")
            assert (tmp_path / "new").joinpath(*["d"] * count).is_dir()
        else:
            with pytest.raises(CopyError, match="deep"):
                copy(deep, tmp_path / "new-2")
            assert not (tmp_path / "new-2").exists()


# Files that are there already


@both_ways
def test_no_clobber(copy: Copy, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "into/tree/sub").mkdir(parents=True)
    (tmp_path / "into/tree/f").write_text("kept")
    (tmp_path / "into/tree/sub/up").symlink_to("kept")
    summary = copy(tree, tmp_path / "into", Rules(no_clobber=True))
    assert (tmp_path / "into/tree/f").read_text() == "kept"
    assert (tmp_path / "into/tree/sub/up").readlink() == Path("kept")
    assert (tmp_path / "into/tree/sub/hard").read_text() == "hello"
    assert summary.kept == 2
    anew = copy(tree, tmp_path / "anew")
    assert (summary.files, summary.links) == (anew.files - 1, anew.links - 1)
    # "f" was kept, but its content came under its other name.
    assert summary.size_bytes == anew.size_bytes
    again = copy(tree, tmp_path / "into", Rules(no_clobber=True))
    assert (again.files, again.links, again.kept) == (0, 0, anew.files + anew.links)
    assert again.size_bytes == 0
    assert copy(tree / "f", tmp_path / "into/tree/f", Rules(no_clobber=True)).kept == 1
    assert (tmp_path / "into/tree/f").read_text() == "kept"


@both_ways
@pytest.mark.parametrize("in_the_way", ["file", "directory"])
def test_nothing_happens_where_something_is_in_the_way(
    copy: Copy, tree: Path, tmp_path: Path, in_the_way: str
) -> None:
    (tmp_path / "into/tree/sub").mkdir(parents=True)
    (tmp_path / "into/tree/f").write_text("old")
    if in_the_way == "file":
        (tmp_path / "into/tree/sub/empty").write_text("a file")
    else:
        (tmp_path / "into/tree/sub/big").mkdir()
    before = snapshot(tmp_path / "into")
    with pytest.raises(CopyError, match="cannot copy a"):
        copy(tree, tmp_path / "into")
    assert snapshot(tmp_path / "into") == before


@pytest.mark.parametrize("can", ["link", "exchange", "move"])
def test_a_merge_that_fails_halfway_is_taken_back(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can: str
) -> None:
    """The last step of a merge fails, as when the destination changes meanwhile."""
    into = tmp_path / "into/tree"
    (into / "sub").mkdir(parents=True)
    for name in ("f", "sub/big", "sub/up"):
        (into / name).write_text("old")
    before = snapshot(tmp_path / "into")
    move, moves, last = Directory.move, 0, 0

    def failing(
        self: Directory, name: bytes, to: Directory, to_name: bytes, *, flags: int = 0
    ) -> None:
        if flags and can == "move":
            raise OSError(errno.EINVAL, "flags")
        nonlocal moves
        moves += 1
        if moves == last:
            raise OSError(errno.EIO, "disk")
        move(self, name, to, to_name, flags=flags)

    link = Directory.link

    def of_others(self: Directory, source: Directory, source_name: bytes, name: bytes) -> None:
        if name.startswith(b"old-"):
            raise OSError(errno.EPERM, "links")
        link(self, source, source_name, name)

    monkeypatch.setattr(Directory, "move", failing)
    if can != "link":
        monkeypatch.setattr(Directory, "link", of_others)
    for step in range(1, 5):
        moves, last = 0, step
        with pytest.raises(CopyError, match="input/output error"):
            directly(tree, tmp_path / "into")
        assert snapshot(tmp_path / "into") == before
    last = 0
    directly(tree, tmp_path / "into")
    assert (into / "f").read_text() == "hello"
    assert (into / "sub/up").readlink() == Path("../f")


def test_ctrl_c_in_the_middle_of_a_merge(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "into/tree").mkdir(parents=True)
    (tmp_path / "into/tree/f").write_text("old")
    before = snapshot(tmp_path / "into")
    merge = Merge._replace

    def interrupted(self: Merge, *arguments: object) -> None:
        merge(self, *arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(Merge, "_replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        directly(tree, tmp_path / "into")
    assert snapshot(tmp_path / "into") == before


def test_a_file_that_appears_meanwhile_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for is_folder in (True, False):
        name = "folder" if is_folder else "file"
        with (
            open_destination(LOCAL, os.fsencode(tmp_path / name)) as place,
            Arrival(place, PLAIN, on_skip=ignore) as arrival,
        ):
            arrival.begin(Entry(b"x", Kind.DIRECTORY if is_folder else Kind.FILE))
            arrival.end()
            (tmp_path / name).write_text("somebody else's")
            with pytest.raises(CopyError, match="file exists"):
                arrival.commit()
        assert (tmp_path / name).read_text() == "somebody else's"


# Failures


@both_ways
@pytest.mark.parametrize("is_file", [True, False])
def test_nothing_is_left_of_a_killed_program(
    copy: Copy, tree: Path, tmp_path: Path, is_file: bool
) -> None:
    (tmp_path / "into").mkdir()
    (tmp_path / "into/f").write_text("old")
    source = tree / "f" if is_file else f"{tree}/."
    script = f"""
import time
from pathlib import Path
from pycrictl.copy import content
from tests.copy.test_archive import {copy.__name__}

def stop(*_):
    print("writing", flush=True)
    time.sleep(100)

content.write_all = stop
content._WAYS = (stop,)
{copy.__name__}({str(source)!r}, {str(tmp_path / "into")!r})
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        assert len(list((tmp_path / "into").iterdir())) == (1 if is_file else 2)
    finally:
        process.kill()
        process.communicate()
    give_up_at = time.monotonic() + 10
    while len(list((tmp_path / "into").iterdir())) > 1:
        assert time.monotonic() < give_up_at, "the stage is still there"
        time.sleep(0.02)
    assert (tmp_path / "into/f").read_text() == "old"


@needs_root
@both_ways
@pytest.mark.parametrize("is_file", [True, False])
def test_no_space_left(copy: Copy, tmp_path: Path, is_file: bool) -> None:
    source, small = tmp_path / "source", tmp_path / "small"
    source.mkdir()
    small.mkdir()
    (source / "a").write_text("a")
    (source / "big").write_bytes(os.urandom(3 * MIB))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", small], check=True)
    try:
        (small / "big").write_text("old")
        before = snapshot(small)
        with pytest.raises(CopyError, match="no space left") as info:
            copy(source / "big" if is_file else f"{source}/.", small)
        assert snapshot(small) == before
        assert info.value.message.startswith(f'cannot copy to "{small}')
    finally:
        subprocess.run(["umount", small], check=True)


@both_ways
@pytest.mark.parametrize("is_file", [True, False])
def test_a_quota_that_is_exceeded(copy: Copy, tmp_path: Path, is_file: bool) -> None:
    source, place = tmp_path / "source", tmp_path / "place"
    source.mkdir()
    place.mkdir()
    (source / "a").write_text("a")
    (source / "big").write_bytes(os.urandom(3 * MIB))
    (place / "big").write_text("old")
    before = snapshot(place)
    with pytest.raises(CopyError) as info:
        exceeding_quota(lambda: copy(source / "big" if is_file else f"{source}/.", place), MIB)
    shown = place if is_file else place / "big"
    assert info.value.message == f'cannot copy to "{shown}": disk quota exceeded'
    assert snapshot(place) == before


@both_ways
def test_a_file_too_large_for_the_limit(copy: Copy, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(os.urandom(100_000))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(CopyError, match='/g": file too large'):
            copy(tmp_path / "f", tmp_path / "g")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "g").exists()


@both_ways
def test_a_file_that_shrinks(copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_bytes(b"x" * 300_000)
    before = segments

    def shrink(fd: int, size_bytes: int) -> list[tuple[int, int]]:
        os.truncate(tmp_path / "f", 200_000)
        return before(fd, size_bytes)

    monkeypatch.setattr("pycrictl.copy.content.segments", shrink)
    monkeypatch.setattr("pycrictl.copy.archive.segments", shrink)
    with pytest.raises(CopyError, match="became shorter"):
        copy(tmp_path / "f", tmp_path / "g")
    assert not (tmp_path / "g").exists()


@both_ways
def test_a_file_that_grows_is_copied_as_it_was(copy: Copy, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 100)
    stop = threading.Event()

    def grow() -> None:
        with (tmp_path / "f").open("ab", buffering=0) as file:
            while not stop.is_set():
                file.write(b"x" * 100)

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        for _ in range(20):
            summary = copy(tmp_path / "f", tmp_path / "g")
            assert (tmp_path / "g").stat().st_size == summary.size_bytes
            assert set((tmp_path / "g").read_bytes()) == {ord("x")}
    finally:
        stop.set()
        thread.join()


@both_ways
def test_a_tree_that_changes_all_the_time(copy: Copy, tmp_path: Path) -> None:
    (tmp_path / "tree/sub").mkdir(parents=True)
    stop = threading.Event()

    def change() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            path = tmp_path / f"tree/sub/{number % 50}"
            path.write_text("x" * 100)
            (tmp_path / f"tree/sub/{(number + 25) % 50}").unlink(missing_ok=True)
            (tmp_path / "tree/now").mkdir(exist_ok=True)
            (tmp_path / "tree/now").rmdir()

    thread = threading.Thread(target=change)
    thread.start()
    done = 0
    failures: set[str] = set()
    give_up_at = time.monotonic() + 1
    try:
        while time.monotonic() < give_up_at:
            try:
                copy(tmp_path / "tree", tmp_path / f"new-{done}")
                done += 1
            except CopyError as exc:
                failures.add(exc.message.rpartition(" became ")[2])
    finally:
        stop.set()
        thread.join()
    assert done > 0
    assert failures <= {"shorter while it was copied"}


# Archives


def test_what_was_announced_must_arrive(tmp_path: Path) -> None:
    data = archive(member(b"x", data=b"1"))
    (tmp_path / "x").write_text("old")
    for announced in (len(data) + 1, len(data) - 1, 2**64 - 1):
        with (
            open_destination(LOCAL, os.fsencode(tmp_path)) as place,
            Unpacker(place, PLAIN, on_skip=ignore, single=False) as unpacker,
        ):
            unpacker.receive_data(data)
            with pytest.raises(CopyError, match="bytes arrived, and"):
                unpacker.finish(size_bytes=announced)
        assert (tmp_path / "x").read_text() == "old"


def test_a_single_top_only(tmp_path: Path) -> None:
    def run(data: bytes, name: bytes | None) -> None:
        with (
            open_destination(LOCAL, os.fsencode(tmp_path / "new")) as place,
            Unpacker(place, PLAIN, on_skip=ignore, name=name) as unpacker,
        ):
            unpacker.receive_data(data)
            unpacker.finish()

    with pytest.raises(EntryRefused, match='not below "x"'):
        run(archive(member(b"x"), member(b"y")), None)
    with pytest.raises(EntryRefused, match='not below "x"'):
        run(archive(member(b"y")), b"x")
    with pytest.raises(CopyError, match="nothing in the archive"):
        run(archive(), b"x")
    assert not (tmp_path / "new").exists()
    run(archive(member(b"x/y", data=b"1")), b"x")
    assert (tmp_path / "new/y").read_text() == "1"


def test_nothing_is_visible_before_the_end(tmp_path: Path) -> None:
    (tmp_path / "into").mkdir()
    with (
        open_destination(LOCAL, os.fsencode(tmp_path / "into")) as place,
        Unpacker(place, PLAIN, on_skip=ignore, single=False) as unpacker,
    ):
        unpacker.receive_data(archive(member(b"a", data=b"1"), member(b"d/b")))
        [stage] = (tmp_path / "into").iterdir()
        assert STAGE_NAME.fullmatch(os.fsencode(stage.name))
        assert stat.S_IMODE(stage.stat().st_mode) == 0o700
        unpacker.finish()
    assert sorted(path.name for path in (tmp_path / "into").iterdir()) == ["a", "d"]


def test_a_lone_file_has_no_name_before_the_end(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    with (
        open_destination(LOCAL, os.fsencode(tmp_path / "f")) as place,
        Unpacker(place, PLAIN, on_skip=ignore) as unpacker,
    ):
        unpacker.receive_data(archive(member(b"x", data=b"new")))
        assert [path.name for path in tmp_path.iterdir()] == ["f"]
        assert (tmp_path / "f").read_text() == "old"
        unpacker.finish()
    assert (tmp_path / "f").read_text() == "new"


@pytest.mark.parametrize("there", [True, False])
def test_a_file_system_without_unnamed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    def unsupported(_: Directory) -> int:
        raise OSError(errno.EOPNOTSUPP, "unsupported")

    monkeypatch.setattr(Directory, "create_unnamed", unsupported)
    (tmp_path / "f").write_text("new")
    if there:
        (tmp_path / "g").write_text("old")
    with pytest.raises(EntryRefused):
        directly(tmp_path / "f", tmp_path / "g", Rules(max_size_bytes=1))
    directly(tmp_path / "f", tmp_path / "g")
    assert (tmp_path / "g").read_text() == "new"
    with (
        open_destination(LOCAL, os.fsencode(tmp_path / "g")) as place,
        Unpacker(place, PLAIN, on_skip=ignore) as unpacker,
    ):
        unpacker.receive_data(member(b"x", data=b"1"))
        with pytest.raises(StreamError):
            unpacker.finish()
    assert (tmp_path / "g").read_text() == "new"


def test_the_directory_of_an_archive_keeps_its_own_mode(tmp_path: Path) -> None:
    (tmp_path / "into").mkdir(mode=0o751)
    data = archive(
        member(b".", FOLDER, mode=0o711, mtime_s=5),
        member(b"d/x", data=b"1"),
        member(b"l", LINK, link=b"d/x"),
    )
    unpack(data, tmp_path / "into")
    assert stat.S_IMODE((tmp_path / "into").stat().st_mode) == 0o751
    assert stat.S_IMODE((tmp_path / "into/d").stat().st_mode) == 0o755
    unpack(data, tmp_path / "into", KEEP)
    assert stat.S_IMODE((tmp_path / "into").stat().st_mode) == 0o711
    assert (tmp_path / "into").stat().st_mtime_ns == 5 * 10**9


def test_long_names_for_busybox(tree: Path, tmp_path: Path) -> None:
    (tree / ("n" * 255)).write_text("long")
    with open_source(LOCAL, os.fsencode(tree)) as source:
        data = b"".join(bytes(piece) for piece in pack(source, on_skip=ignore, busybox=True))
    assert data.endswith(END_OF_ARCHIVE)
    (tmp_path / "out").mkdir()
    command = ["busybox", "tar", "-C", str(tmp_path / "out"), "-xf", "-"]
    subprocess.run(command, input=data, check=True)
    assert (tmp_path / "out/tree" / ("n" * 255)).read_text() == "long"


# Without root


@needs_root
def test_directories_that_their_owner_cannot_write_to() -> None:
    """Another user copies a tree with closed directories, and gets their modes."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="pct-") as name:
        top = Path(name)
        (top / "tree/sub/empty").mkdir(parents=True)
        (top / "tree/sub/f").write_text("hello")
        (top / "tree/sub/empty").chmod(0o500)
        (top / "tree/sub").chmod(0o550)
        for path in (top, *top.rglob("*")):
            os.chown(path, 65534, 65534)
        pid = os.fork()
        if pid == 0:
            status = 1
            with suppress(BaseException):
                os.setgid(65534)
                os.setuid(65534)
                directly(top / "tree", top / "new", KEEP)
                directly(top / "tree/sub", top / "sub", KEEP)
                (top / "into/tree").mkdir(parents=True)
                directly(top / "tree", top / "into", KEEP)
                by_archive(top / "tree", top / "by-archive", KEEP)
                status = 0
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        for copied in ("new", "into/tree", "by-archive"):
            assert listing(top / copied) == listing(top / "tree")
        assert listing(top / "sub") == listing(top / "tree/sub")
        assert (top / "new/sub/f").stat().st_uid == 65534


# Content


@pytest.mark.parametrize("way", content._WAYS, ids=lambda way: way.__name__)
def test_every_way_of_copying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Callable[..., int]
) -> None:
    def unsupported(*_: object) -> int:
        raise OSError(errno.EXDEV, "unsupported")

    ways = [way if each is way else unsupported for each in content._WAYS]
    monkeypatch.setattr(content, "_WAYS", (*ways[: content._WAYS.index(way) + 1],))
    data = os.urandom(MIB) + bytes(MIB) + os.urandom(300_001)
    (tmp_path / "f").write_bytes(data)
    told: list[int] = []
    with (tmp_path / "f").open("rb") as source, (tmp_path / "g").open("wb") as target:
        copy_content(source.fileno(), target.fileno(), len(data), shown=b"f", on_bytes=told.append)
    assert (tmp_path / "g").read_bytes() == data
    assert sum(told) == len(data)


def test_a_disk_error_is_not_taken_for_a_missing_feature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "disk")

    monkeypatch.setattr(content, "_WAYS", (broken, *content._WAYS))
    (tmp_path / "f").write_bytes(bytes(content.SMALL_BYTES + 1))
    with pytest.raises(CopyError, match='cannot copy "f": input/output error'):
        directly(tmp_path / "f", tmp_path / "g")


def test_runs_of_every_length_are_written(tmp_path: Path) -> None:
    data = os.urandom(2 * MIB)
    fd = os.open(tmp_path / "f", os.O_WRONLY | os.O_CREAT)
    writer = SparseWriter(fd, 10 * MIB)
    written = b""
    for size in (1, 262_143, 262_144, 262_145, MIB + 7, 0, 2 * MIB):
        writer.write(memoryview(data)[:size])
        written += data[:size]
    writer.finish()
    os.close(fd)
    assert (tmp_path / "f").read_bytes() == written
    # What was reserved is what was written.
    assert (tmp_path / "f").stat().st_blocks * 512 < len(written) + 65_536


@needs_root
def test_a_file_system_that_reserves_nothing(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "ramfs", "ramfs", tmp_path], check=True)
    try:
        test_runs_of_every_length_are_written(tmp_path)
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_content_that_is_left_in_its_files(tmp_path: Path) -> None:
    top = tmp_path / "d"
    top.mkdir()
    for number, size in enumerate((0, 1, 262_143, 262_144, 3 * MIB + 5)):
        (top / str(number)).write_bytes(os.urandom(size))
    with (top / "sparse").open("wb") as file:
        file.seek(2 * MIB)
        file.write(os.urandom(MIB))
        file.truncate(5 * MIB)
    with open_source(LOCAL, os.fsencode(top)) as found:
        whole = b"".join(map(bytes, pack(found, on_skip=ignore)))
        parts, unread = [], 0
        for piece in pack_unread(found, on_skip=ignore):
            if isinstance(piece, FilePart):
                parts.append(os.pread(piece.fd, len(piece), piece.offset))
                unread += len(piece)
            else:
                parts.append(bytes(piece))
    assert b"".join(parts) == whole
    assert unread >= 262_144 + 3 * MIB + MIB


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 200_000])
def test_holes_are_found_in_streams(tmp_path: Path, size: int) -> None:
    hole = 65_536
    data = os.urandom(hole) + bytes(3 * hole) + b"x" + bytes(size)
    fd = os.open(tmp_path / "f", os.O_WRONLY | os.O_CREAT)
    writer = SparseWriter(fd, len(data))
    for start in range(0, len(data), 2 * hole):
        writer.write(memoryview(data)[start : start + 2 * hole])
    writer.finish()
    os.close(fd)
    assert (tmp_path / "f").read_bytes() == data
    assert (tmp_path / "f").stat().st_blocks * 512 < len(data) - 2 * hole


def test_segments_of_a_file_with_holes(tmp_path: Path) -> None:
    with (tmp_path / "f").open("wb") as file:
        file.truncate(10 * MIB)
        for start in (MIB, 5 * MIB):
            file.seek(start)
            file.write(b"x" * 4096)
    with (tmp_path / "f").open("rb") as file:
        assert segments(file.fileno(), 10 * MIB) == [
            (MIB, MIB + 4096),
            (5 * MIB, 5 * MIB + 4096),
        ]
        assert segments(file.fileno(), 3 * MIB) == [(MIB, MIB + 4096)]
        assert segments(file.fileno(), 5 * MIB + 10) == [
            (MIB, MIB + 4096),
            (5 * MIB, 5 * MIB + 10),
        ]
        assert segments(file.fileno(), 0) == []
    read, write = os.pipe()
    with pytest.raises(OSError, match="Illegal seek"):
        segments(read, MIB)
    os.close(read)
    os.close(write)
