"""A tree to copy, both ways of copying on this machine, and listings of the result."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from zlib import crc32

import pytest

from pycrictl.base.errors import PycrictlError
from pycrictl.copy import methods
from pycrictl.copy.archive import archives
from pycrictl.copy.archive.archives import TreeArchive
from pycrictl.copy.archive.arrival import put
from pycrictl.copy.archive.pack import Measured, pack
from pycrictl.copy.methods import Method
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.spec import SourceKind
from pycrictl.copy.tree.places import THIS_MACHINE, open_destination, open_source
from pycrictl.copy.tree.walk import OnSkip, Watch
from pycrictl.streams.wire.tar.reader import EntryStarted, read

PLAIN = Rules()
KEEP = Rules(archive=True)
MIB = 1024 * 1024
Copy = Callable[..., Summary]


def ignore(_: object) -> None:
    pass


UNWATCHED = Watch(ignore, ignore)


class Archive(archives.Archive):
    """An incoming archive made of given pieces."""

    def __init__(
        self,
        pieces: Iterable[bytes | memoryview],
        *,
        single: bool = False,
        name: bytes | None = None,
    ) -> None:
        self.arriving = pieces
        self.kind = SourceKind.DIRECTORY if single else SourceKind.ARCHIVE
        self.name = name

    def pieces(self, offset: int = 0) -> Generator[memoryview, None, None]:
        for piece in self.arriving:
            yield memoryview(piece)

    def measured(self, rules: Rules, watch: Watch) -> Measured:
        data = b"".join(self.arriving)
        return Measured(len(data), crc32(data), Summary())


def put_at(
    destination: Path | str,
    archive: archives.Archive,
    rules: Rules = PLAIN,
    *,
    on_skip: OnSkip = ignore,
    note: Callable[[str], None] = ignore,
) -> Summary:
    watch = Watch(ignore, on_skip, note=note)
    with open_destination(THIS_MACHINE, os.fsencode(destination)) as place:
        return put(archive, place, rules, watch, check=lambda: None)


def copied(
    source: Path | str,
    destination: Path | str,
    rules: Rules = PLAIN,
    *,
    follow: bool = False,
    on_skip: OnSkip = ignore,
    is_packed: bool,
) -> Summary:
    with open_source(THIS_MACHINE, os.fsencode(source), follow=follow) as opened:
        if not is_packed:
            return put_at(destination, TreeArchive(opened, on_skip), rules, on_skip=on_skip)
        with closing(pack(opened, on_skip=on_skip)) as pieces:
            coming = Archive(pieces, single=True, name=opened.top)
            return put_at(destination, coming, rules, on_skip=on_skip)


def copy_in(method: Method, local: bytes, path: bytes, rules: Rules, watch: Watch) -> Summary:
    return methods.copy_to(method, [local], path, rules, watch)


directly: Copy = partial(copied, is_packed=False)
by_archive: Copy = partial(copied, is_packed=True)
both_ways = pytest.mark.parametrize("copy", [directly, by_archive], ids=["directly", "archive"])


def make_tree(top: Path) -> None:
    (top / "sub/empty").mkdir(parents=True)
    (top / "f").write_text("hello")
    (top / "sub/big").write_bytes(os.urandom(MIB + 77))
    (top / "sub/hard").hardlink_to(top / "f")
    (top / "sub/up").symlink_to("../f")
    (top / os.fsdecode(b"\xff\n")).write_text("odd")
    (top / "f").chmod(0o751)
    (top / "sub").chmod(0o550)
    set_times(top)


def set_times(top: Path) -> None:
    for path in (*top.rglob("*"), top):
        os.utime(path, ns=(1, 1_234_567_890_987_654_321), follow_symlinks=False)
    for path in (top / "sub/empty", top / "sub/up", top / "sub/big"):
        os.utime(path, ns=(1, -1_234_567_890_987_654_321), follow_symlinks=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    make_tree(tmp_path / "tree")
    return tmp_path / "tree"


def below(top: Path) -> Iterator[tuple[str, os.stat_result, Path | bytes | None]]:
    """Yield name, status, and target or content of a directory and everything below it."""
    for path in (top, *top.rglob("*")):
        content: Path | bytes | None = None
        if path.is_symlink():
            content = path.readlink()
        elif path.is_file():
            content = path.read_bytes()
        yield str(path.relative_to(top)), path.lstat(), content


def times_in(pieces: Iterable[memoryview]) -> list[int]:
    """Return the modification times in an archive, in nanoseconds."""
    return [event.entry.mtime_ns for event in read(pieces) if isinstance(event, EntryStarted)]


def listing(top: Path, *, ids: bool = False, times: bool = True) -> dict[str, tuple[object, ...]]:
    """Return types, modes, times and contents of ``top`` and everything below it."""
    listing: dict[str, tuple[object, ...]] = {}
    for name, status, content in below(top):
        held = (status.st_nlink, content) if isinstance(content, bytes) else content
        owner = (status.st_uid, status.st_gid) if ids else ()
        time_ns = status.st_mtime_ns if times else 0
        listing[name] = (status.st_mode, time_ns, *owner, held)
    return listing


def made_in(dest: Path) -> dict[str, bytes | None]:
    """Return the contents of a directory in the form of ``Case.made`` in the hostile corpus."""
    return {
        name: b"->" + bytes(content) if isinstance(content, Path) else content
        for name, _, content in below(dest)
        if name != "."
    }


def contents(top: Path) -> dict[str, str]:
    files = [path for path in top.rglob("*") if path.is_file()]
    return {str(path.relative_to(top)): path.read_text("latin-1") for path in files}


def check_wildcards(out: Callable[[str, Path], object], inside: Path, top: str, here: Path) -> None:
    """Check what wildcards in a path of a container mean.

    Args:
        out: copies a path of the container to a local one.
        inside, top: a directory of the container, from outside and inside.
    """
    names = ("a.log", "b.log", "d/x", "[1]", ".hidden")
    for name in names:
        (inside / "t" / name).parent.mkdir(parents=True, exist_ok=True)
        (inside / "t" / name).write_text(name)
    (here / "into").mkdir(parents=True)
    out(f"{top}/t/*", here / "into")
    assert contents(here / "into") == {name: name for name in names[:-1]}
    out(f"{top}/t/a*", here / "new")  # one match goes where a file of that name would
    out(f"{top}/t/[1]", here / "exact")  # there is a file of exactly this name
    assert [(here / name).read_text() for name in ("new", "exact")] == ["a.log", "[1]"]
    for pattern, why in (("*.log", "not a directory|no directory"), ("z*", "no such file")):
        with pytest.raises(PycrictlError, match=why):
            out(f"{top}/t/{pattern}", here / "none")
    out(f"{top}/t/*/", here / "new-d")
    assert contents(here / "new-d") == {"x": "d/x"}
    assert not (here / "none").exists()
    assert stages_in(here) == []


def stages_in(*folders: Path) -> list[Path]:
    """Return all stages, even while one is being removed, which ends a walk by ``rglob``."""
    return [
        Path(top, name)
        for folder in folders
        for top, *names in os.walk(folder)
        for name in (*names[0], *names[1])
        if name.startswith(".pycrictl-")
    ]
