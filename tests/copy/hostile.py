"""Archives that attack whoever unpacks them, and honest ones that look like them.

Every case is unpacked into the directory ``dest`` of a folder that also has a directory
``outside``, ``dest-sibling`` and files next to them (see ``build_surroundings``). Whatever the
case, nothing but ``dest`` may change; if it is refused, ``dest`` may not change either.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pycrictl.wire.tar.header import encode_block, encode_record
from pycrictl.wire.tar.writer import END_OF_ARCHIVE

MARKER: Final = b"HOSTILE"
FILE, HARD, LINK, CHAR, BLOCK, FOLDER, PIPE = b"0", b"1", b"2", b"3", b"4", b"5", b"6"


@dataclass(frozen=True)
class Case:
    """One archive.

    Attributes:
        data: the archive.
        refused: a word of the message, or of the rule, with which it is refused; None: taken.
        skipped: names that are left out while the rest is taken.
        made: what is in ``dest`` afterwards: content of a file, ``->target`` of a link, None for
            a directory.
        before: changes ``dest`` first.
        by_exec: it is taken by tar in a container, too, which cannot be asked to take back a link.
    """

    data: bytes
    refused: str | None = None
    skipped: tuple[bytes, ...] = ()
    made: dict[str, bytes | None] | None = None
    before: Callable[[Path], None] | None = None
    by_exec: bool = True


def member(
    name: bytes,
    kind: bytes = FILE,
    data: bytes = b"",
    *,
    link: bytes = b"",
    size: int | None = None,
    mode: int = 0o644,
    uid: int = 0,
    gid: int = 0,
    mtime_s: int = 0,
) -> bytes:
    header = encode_block(
        name,
        kind,
        size=len(data) if size is None else size,
        mode=mode,
        uid=uid,
        gid=gid,
        mtime_s=mtime_s,
        link=link,
    )
    return header + data + bytes(-len(data) % 512)


def pax(*records: tuple[bytes, bytes], kind: bytes = b"x") -> bytes:
    return member(b"pax", kind, b"".join(encode_record(*record) for record in records))


def patch(header: bytes, offset: int, data: bytes) -> bytes:
    """Other bytes in one place of a header, whose checksum is made right again."""
    changed = bytearray(header[:512])
    changed[offset : offset + len(data)] = data
    changed[148:156] = b" " * 8
    changed[148:156] = b"%06o\0 " % sum(changed)
    return bytes(changed) + header[512:]


def archive(*members: bytes) -> bytes:
    return b"".join(members) + END_OF_ARCHIVE


def evil(name: bytes) -> bytes:
    return member(name, FILE, MARKER)


def build_surroundings(parent: Path) -> None:
    """What must not change: files, directories, links and a pipe around ``dest``."""
    for folder in ("dest", "dest-sibling", "outside", "outside/inner"):
        (parent / folder).mkdir()
    for name in ("secret", "outside/secret", "outside/inner/file", "dest-sibling/file"):
        (parent / name).write_text("keep me")
        (parent / name).chmod(0o640)
        os.utime(parent / name, (1_000_000_000, 1_000_000_000))
    (parent / "link").symlink_to("outside/secret")
    os.mkfifo(parent / "pipe")


def snapshot(top: Path, *, but: Iterable[str] = ()) -> dict[str, tuple[object, ...]]:
    """Everything below ``top`` as ``lstat`` sees it, with the content of files."""
    left_out = set(but)
    found: dict[str, tuple[object, ...]] = {}
    for folder, folders, files in os.walk(top):
        here = Path(folder)
        for name in list(folders):
            if str((here / name).relative_to(top)) in left_out:
                folders.remove(name)
        for path in (here, *(here / name for name in (*folders, *files))):
            status = path.lstat()
            content: object = None
            if path.is_symlink():
                content = path.readlink()
            elif path.is_file():
                content = path.read_bytes() if status.st_size < 2**20 else status.st_blocks
            # A stage that came and went leaves its trace in the time of the directory only.
            time = None if path.is_dir() and not path.is_symlink() else status.st_mtime_ns
            found[str(path.relative_to(top))] = (
                *(status.st_mode, status.st_uid, status.st_gid, status.st_ino, status.st_nlink),
                *(time, content),
            )
    return found


def _link_in_dest(target: str, name: str = "dir") -> Callable[[Path], None]:
    return lambda dest: (dest / name).symlink_to(target)


def _hardlink_in_dest(dest: Path) -> None:
    (dest / "file").hardlink_to(dest.parent / "secret")


def _pipe_in_dest(dest: Path) -> None:
    os.mkfifo(dest / "file")


def _folder_in_dest(dest: Path) -> None:
    (dest / "x").mkdir()
    (dest / "x/kept").write_text("kept")


def _file_in_dest(dest: Path) -> None:
    (dest / "x").write_text("kept")


LONG: Final = b"n" * 255
TOO_LONG: Final = b"n" * 256
DEEP_PATH: Final = b"/".join([b"d"] * 512)

HOSTILE: Final[dict[str, Case]] = {
    # Names that lead out
    "dotdot": Case(archive(evil(b"../secret")), "dot-dot"),
    "dotdot-deep": Case(archive(evil(b"a/b/../../../secret")), "dot-dot"),
    "dotdot-inside": Case(archive(evil(b"a/../b")), "dot-dot"),
    "dotdot-only": Case(archive(member(b"..", FOLDER, mode=0o777)), "dot-dot"),
    "dotdot-end": Case(archive(evil(b"a/..")), "dot-dot"),
    "dotdot-slashes": Case(archive(evil(b"a//..//../secret")), "dot-dot"),
    "dotdot-prefixname": Case(archive(evil(b"../dest-sibling/file")), "dot-dot"),
    "dotdot-dir-chmod": Case(archive(member(b"../outside/", FOLDER, mode=0o777)), "dot-dot"),
    "dotdot-second": Case(archive(evil(b"good"), evil(b"../secret")), "dot-dot"),
    "absolute-dotdot": Case(archive(evil(b"/../secret")), "dot-dot"),
    "absolute-dotdot-deep": Case(archive(evil(b"//a/../../secret")), "dot-dot"),
    "absolute-pax-dotdot": Case(archive(pax((b"path", b"/../secret")), evil(b"x")), "dot-dot"),
    "absolute-file-root": Case(archive(evil(b"/")), "top"),
    "absolute-sym-root": Case(archive(member(b"/", LINK, link=b"outside")), "top"),
    "ustar-prefix": Case(archive(patch(evil(b"secret"), 345, b"..")), "dot-dot"),
    "pax-path-override": Case(archive(pax((b"path", b"../secret")), evil(b"good")), "dot-dot"),
    "gnu-longname": Case(archive(member(b"L", b"L", b"../secret\0"), evil(b"good")), "dot-dot"),
    "gnu-longlink": Case(
        archive(member(b"K", b"K", b"../secret\0"), member(b"h", HARD)), "dot-dot"
    ),
    # Links that lead out
    "sym-abs-dir": Case(archive(member(b"l", LINK, link=b"/tmp"), evil(b"l/x")), "below"),
    "sym-rel-dir": Case(archive(member(b"l", LINK, link=b"../outside"), evil(b"l/x")), "below"),
    "sym-trailing-slash": Case(
        archive(member(b"l", LINK, link=b"../dest-sibling/"), evil(b"l/file")), "below"
    ),
    "sym-two-links": Case(
        archive(
            member(b"a", LINK, link=b"."), member(b"a/b", LINK, link=b".."), evil(b"a/b/secret")
        ),
        "below",
    ),
    "sym-four-links": Case(
        archive(
            member(b"d", FOLDER),
            member(b"d/a", LINK, link=b"."),
            member(b"b", LINK, link=b"d/a/.."),
            member(b"c", LINK, link=b"b/.."),
            evil(b"c/secret"),
        ),
        "below",
    ),
    "sym-proc-fd": Case(
        archive(member(b"l", LINK, link=b"/proc/self/fd/7"), evil(b"l/x")), "below"
    ),
    "sym-realpath-limit": Case(
        archive(
            member(b"d", FOLDER),
            *(
                member(b"/".join([b"d"] * 1) + b"/l%d" % n, LINK, link=b"d" * 200)
                for n in range(20)
            ),
            member(b"e", LINK, link=b"d/l0/../../../outside"),
            evil(b"e/secret"),
        ),
        "below",
    ),
    "sym-empty": Case(archive(member(b"l", LINK)), "link-target"),
    "sym-too-long": Case(
        archive(member(b"K", b"K", b"x" * 4096 + b"\0"), member(b"l", LINK)), "link-target"
    ),
    "sym-root": Case(archive(member(b".", LINK, link=b"/")), "top"),
    "file-root": Case(archive(evil(b"./")), "top"),
    "pipe-root": Case(archive(member(b".", PIPE)), "top"),
    # Hard links
    "hard-abs": Case(archive(member(b"h", HARD, link=b"/etc/passwd")), "hard-link"),
    "hard-abs-dotdot": Case(archive(member(b"h", HARD, link=b"/../secret")), "dot-dot"),
    "hard-dotdot": Case(archive(member(b"h", HARD, link=b"../secret")), "dot-dot"),
    "hard-missing": Case(archive(member(b"h", HARD, link=b"nothing")), "hard-link"),
    "hard-itself": Case(archive(member(b"h", HARD, link=b"h")), "hard-link"),
    "hard-dir": Case(archive(member(b"d", FOLDER), member(b"h", HARD, link=b"d")), "hard-link"),
    "hard-top": Case(archive(member(b".", FOLDER), member(b"h", HARD, link=b".")), "hard-link"),
    "hard-via-sym": Case(
        archive(member(b"l", LINK, link=b"../outside"), member(b"h", HARD, link=b"l/secret")),
        "hard-link",
    ),
    "hard-existing": Case(
        archive(member(b"h", HARD, link=b"x")), "hard-link", before=_file_in_dest
    ),
    "hard-below": Case(
        archive(evil(b"f"), member(b"h", HARD, link=b"f"), evil(b"h/x")), "not-a-directory"
    ),
    # Names that cannot be
    "name-empty": Case(archive(patch(evil(b"x"), 0, b"\0")), "empty"),
    "name-nul": Case(archive(pax((b"path", b"a\0b")), evil(b"x")), "NUL"),
    "name-too-long": Case(archive(pax((b"path", TOO_LONG)), evil(b"x")), "too-long"),
    "path-too-long": Case(archive(pax((b"path", b"/".join([LONG] * 17))), evil(b"x")), "too-long"),
    "too-deep": Case(archive(pax((b"path", DEEP_PATH + b"/x")), evil(b"x")), "too-deep"),
    "longname-huge": Case(member(b"L", b"L", size=2**40) + bytes(4096), "too long"),
    "longname-chain": Case(
        b"".join(member(b"L", b"L", b"x\0") for _ in range(3000)), "two long names"
    ),
    "pax-chain": Case(b"".join(pax((b"path", b"x")) for _ in range(3000)), "two pax headers"),
    "aregtype-longname-slash": Case(
        archive(member(b"L", b"L", b"n" * 150 + b"/\0"), member(b"x", b"\0", MARKER)),
        "trailing-slash",
    ),
    # Names twice, and kinds that change
    "dup-then-below": Case(
        archive(evil(b"a"), member(b"a", LINK, link=b"../outside"), evil(b"a/secret")), "below"
    ),
    "dup-inside-then-below": Case(
        archive(member(b"d", FOLDER), evil(b"a"), member(b"a", LINK, link=b"d"), evil(b"a/x")),
        "below",
    ),
    "dir-sym-below": Case(
        archive(member(b"d", FOLDER), member(b"d", LINK, link=b"."), evil(b"d/x")), "below"
    ),
    "dir-outward-below": Case(
        archive(member(b"d", FOLDER), member(b"d", LINK, link=b"../outside"), evil(b"d/secret")),
        "below",
    ),
    "filled-dir-sym": Case(
        archive(evil(b"d/x"), member(b"d", LINK, link=b"../outside")), "type-change"
    ),
    "filled-dir-file": Case(archive(evil(b"x/y"), evil(b"x")), "type-change"),
    "filled-dir-pipe": Case(archive(member(b"x/y", PIPE), member(b"x", PIPE)), "type-change"),
    "hard-to-replaced": Case(
        archive(evil(b"f"), member(b"f", FOLDER), member(b"h", HARD, link=b"f")), "hard-link"
    ),
    "hard-to-itself-again": Case(archive(evil(b"f"), member(b"f", HARD, link=b"f")), "hard-link"),
    "file-below-file": Case(archive(evil(b"x"), evil(b"x/y")), "not-a-directory"),
    "below-skipped": Case(archive(member(b"x", PIPE), evil(b"x/y")), "not-a-directory"),
    # Numbers
    "size-negative": Case(archive(patch(evil(b"x"), 124, b"\xff" * 12)), "invalid size"),
    "size-minus": Case(archive(patch(evil(b"x"), 124, b"-0000000007\0")), "invalid size"),
    "size-huge": Case(member(b"x", size=2**62), "too early"),
    "size-beyond": Case(
        archive(patch(evil(b"x"), 124, b"\x80" + b"\xff" * 11)), "larger than any file"
    ),
    "pax-size-two": Case(
        archive(pax((b"size", b"1024")), member(b"x", FILE, b"y" * 512)), "two sizes"
    ),
    "pax-size-negative": Case(archive(pax((b"size", b"-1")), evil(b"x")), "invalid size"),
    "pax-len-zero": Case(archive(member(b"p", b"x", b"0 path=x\n"), evil(b"x")), "wrong length"),
    "pax-len-huge": Case(
        archive(member(b"p", b"x", b"9999999999 path=x\n"), evil(b"x")), "wrong length"
    ),
    "pax-twice": Case(archive(pax((b"path", b"a"), (b"path", b"../b")), evil(b"x")), "twice"),
    "pax-mtime-nan": Case(archive(pax((b"mtime", b"nan")), evil(b"x")), "invalid time"),
    "pax-global-path": Case(
        archive(pax((b"path", b"../secret"), kind=b"g"), evil(b"x")), "global header"
    ),
    "pax-regex-dos": Case(archive(member(b"p", b"x", b"1" * 200_000), evil(b"x")), "wrong length"),
    "uid-negative": Case(archive(patch(evil(b"x"), 108, b"\xff" * 8)), "invalid owner"),
    # Sparse forms
    "sparse-gnu": Case(archive(member(b"x", b"S", b"y" * 512)), "sparse"),
    "sparse-pax": Case(
        archive(pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.realsize", b"9" * 15)), evil(b"x")),
        "sparse",
    ),
    # Content where none belongs
    "link-with-data": Case(archive(member(b"l", LINK, MARKER, link=b"x")), "content"),
    "hard-with-data": Case(
        archive(evil(b"f"), member(b"h", HARD, MARKER, link=b"f")), "has content"
    ),
    "dir-with-data": Case(archive(member(b"d", FOLDER, MARKER)), "has content"),
    "type-unknown": Case(archive(member(b"x", b"M", MARKER)), "unknown type"),
    # Not a whole plain archive
    "gz-plain": Case(gzip.compress(archive(evil(b"x"))).ljust(512, b"x"), "gzip"),
    "bz2-plain": Case(bz2.compress(archive(evil(b"x"))).ljust(512, b"x"), "bzip2"),
    "xz-plain": Case(lzma.compress(archive(evil(b"x"))).ljust(512, b"x"), "xz"),
    "gz-bomb": Case(gzip.compress(bytes(2**24)), "gzip"),
    "text": Case(b"tar: /x: No such file\n".ljust(512), "not a tar archive"),
    "nothing": Case(b"", "too early"),
    "trunc-header": Case(archive(evil(b"x"))[:300], "too early"),
    "trunc-content": Case(archive(member(b"x", FILE, b"y" * 2000))[:1000], "too early"),
    "trunc-padding": Case(evil(b"x")[:600], "too early"),
    "no-eof": Case(evil(b"x"), "too early"),
    "half-eof": Case(evil(b"x") + bytes(512), "too early"),
    "lone-zero-block": Case(evil(b"x") + bytes(512) + archive(evil(b"y")), "end mark"),
    "data-after-end": Case(archive(evil(b"x")) + archive(evil(b"y")), "follows the end"),
    "checksum": Case(evil(b"x") + archive(b"Y" + evil(b"x")[1:]), "checksum"),
    # What is there already
    "pre-sym-dir": Case(
        archive(evil(b"dir/secret")), "directory over the file", before=_link_in_dest("../outside")
    ),
    "pre-sym-deep": Case(
        archive(member(b"dir", FOLDER), member(b"dir/inner", FOLDER), evil(b"dir/inner/file")),
        "directory over the file",
        before=_link_in_dest("../outside"),
    ),
    "pre-sym-self": Case(
        archive(evil(b"dir/x")), "directory over the file", before=_link_in_dest("..")
    ),
    "pre-dir-in-the-way": Case(
        archive(evil(b"a"), evil(b"x")), "file over the directory", before=_folder_in_dest
    ),
    "pre-file-in-the-way": Case(
        archive(evil(b"a"), evil(b"x/y")), "directory over the file", before=_file_in_dest
    ),
    "pre-fifo": Case(
        archive(evil(b"a"), evil(b"file")), "device, pipe or socket", before=_pipe_in_dest
    ),
    "pre-keep-on-trunc": Case(archive(evil(b"x"))[:-512], "too early", before=_file_in_dest),
}

HONEST: Final[dict[str, Case]] = {
    "file": Case(archive(member(b"x", FILE, b"1")), made={"x": b"1"}),
    "empty-file": Case(archive(member(b"x")), made={"x": b""}),
    "empty-archive": Case(archive(), made={}),
    "padded-end": Case(archive(member(b"x")) + bytes(9000), made={"x": b""}),
    "dot-slash": Case(
        archive(member(b"./", FOLDER), member(b"./a", FOLDER), member(b"./a/x", FILE, b"1")),
        made={"a": None, "a/x": b"1"},
    ),
    "implied-parents": Case(archive(member(b"a/b/x")), made={"a": None, "a/b": None, "a/b/x": b""}),
    "dots-in-names": Case(
        archive(member(b"..x"), member(b"..."), member(b"a..", FOLDER)),
        made={"..x": b"", "...": b"", "a..": None},
    ),
    "dir-twice": Case(archive(member(b"a", FOLDER), member(b"a/", FOLDER)), made={"a": None}),
    "file-before-its-dir": Case(
        archive(member(b"a/x"), member(b"a", FOLDER)), made={"a": None, "a/x": b""}
    ),
    "sym-inside": Case(
        archive(
            member(b"a", FOLDER),
            member(b"a/up", LINK, link=b"../x"),
            member(b"l", LINK, link=b"a"),
            member(b"x", FILE, b"1"),
        ),
        made={"a": None, "a/up": b"->../x", "l": b"->a", "x": b"1"},
    ),
    # The same name twice, as tar -r writes it: the last one counts
    "twice": Case(
        archive(member(b"x", FILE, b"1"), member(b"./x", FILE, b"22")), made={"x": b"22"}
    ),
    "twice-deep": Case(
        archive(member(b"a/x", FILE, b"1"), member(b"b"), member(b"a//x", FILE, b"2")),
        made={"a": None, "a/x": b"2", "b": b""},
    ),
    "twice-with-link-between": Case(
        archive(
            member(b"y", FILE, b"0"),
            member(b"x", FILE, b"1"),
            member(b"x", LINK, link=b"y"),
            member(b"x", FILE, b"2"),
        ),
        made={"x": b"2", "y": b"0"},
        by_exec=False,
    ),
    "twice-with-outward-link-between": Case(
        archive(
            member(b"x", FILE, b"1"),
            member(b"x", LINK, link=b"../outside/secret"),
            member(b"x", FILE, b"2"),
        ),
        skipped=(b"x",),
        made={"x": b"2"},
        by_exec=False,
    ),
    "link-then-file": Case(
        archive(member(b"l", LINK, link=b"x"), member(b"l", FILE, b"1"), member(b"x", FILE, b"2")),
        made={"l": b"1", "x": b"2"},
        by_exec=False,
    ),
    "file-then-link": Case(
        archive(member(b"l", FILE, b"1"), member(b"l", LINK, link=b"x")),
        made={"l": b"->x"},
        by_exec=False,
    ),
    "link-then-dir": Case(
        archive(
            member(b"d", FOLDER),
            member(b"l", LINK, link=b"d"),
            member(b"l", FOLDER),
            member(b"l/x", FILE, b"1"),
        ),
        made={"d": None, "l": None, "l/x": b"1"},
        by_exec=False,
    ),
    "outward-link-then-dir": Case(
        archive(
            member(b"l", LINK, link=b"../outside"),
            member(b"l", FOLDER, mode=0o777),
            member(b"l/secret", FILE, b"1"),
        ),
        skipped=(b"l",),
        made={"l": None, "l/secret": b"1"},
        by_exec=False,
    ),
    "dir-then-link": Case(
        archive(member(b"d", FOLDER, mode=0o777), member(b"d", LINK, link=b"e")),
        made={"d": b"->e"},
        by_exec=False,
    ),
    "dir-then-outward-link": Case(
        archive(member(b"d", FOLDER, mode=0o777), member(b"d", LINK, link=b"../outside")),
        skipped=(b"d",),
        made={},
        by_exec=False,
    ),
    "dir-then-file-then-dir": Case(
        archive(member(b"d", FOLDER), member(b"d"), member(b"d", FOLDER), member(b"d/x")),
        made={"d": None, "d/x": b""},
        by_exec=False,
    ),
    "file-then-pipe": Case(
        archive(member(b"x", FILE, b"1"), member(b"x", PIPE)),
        skipped=(b"x",),
        made={},
        by_exec=False,
    ),
    "hard-then-file": Case(
        archive(member(b"f", FILE, b"1"), member(b"h", HARD, link=b"f"), member(b"h", FILE, b"22")),
        made={"f": b"1", "h": b"22"},
    ),
    "hard-then-original": Case(
        archive(
            member(b"f", FILE, b"1"),
            member(b"h", HARD, link=b"f"),
            member(b"f", FILE, b"22"),
            member(b"g", HARD, link=b"f"),
        ),
        made={"f": b"22", "h": b"1", "g": b"22"},
    ),
    # Names as tar -P writes them
    "absolute": Case(
        archive(member(b"/", FOLDER), member(b"/tmp/x", FILE, b"1"), member(b"//y", FILE, b"2")),
        made={"tmp": None, "tmp/x": b"1", "y": b"2"},
    ),
    "absolute-links": Case(
        archive(
            member(b"/f", FILE, b"1"),
            member(b"/h", HARD, link=b"/f"),
            member(b"/l", LINK, link=b"/etc/passwd"),
        ),
        skipped=(b"/l",),
        made={"f": b"1", "h": b"1"},
    ),
    "absolute-prefix": Case(
        archive(patch(member(b"x", FILE, b"1"), 345, b"/tmp"), pax((b"path", b"/y")), member(b"z")),
        made={"tmp": None, "tmp/x": b"1", "y": b""},
    ),
    "sym-dangling": Case(archive(member(b"l", LINK, link=b"later")), made={"l": b"->later"}),
    "sym-k8s-volume": Case(
        archive(
            member(b"..2026_01_02", FOLDER),
            member(b"..2026_01_02/key", FILE, b"v"),
            member(b"..data", LINK, link=b"..2026_01_02"),
            member(b"key", LINK, link=b"..data/key"),
        ),
        made={
            "..2026_01_02": None,
            "..2026_01_02/key": b"v",
            "..data": b"->..2026_01_02",
            "key": b"->..data/key",
        },
    ),
    "sym-out-is-skipped": Case(
        archive(
            member(b"out", LINK, link=b"../outside/secret"),
            member(b"abs", LINK, link=b"/etc/passwd"),
            member(b"tricky", LINK, link=b"a/../../outside"),
            member(b"x", FILE, b"1"),
        ),
        skipped=(b"out", b"abs", b"tricky"),
        made={"x": b"1"},
    ),
    "hard": Case(
        archive(member(b"a/f", FILE, b"1"), member(b"g", HARD, link=b"./a/f")),
        made={"a": None, "a/f": b"1", "g": b"1"},
    ),
    "hard-to-sym": Case(
        archive(
            member(b"a/l", LINK, link=b"f"),
            member(b"a/m", HARD, link=b"a/l"),
            member(b"n", HARD, link=b"a/m"),
        ),
        made={"a": None, "a/l": b"->f", "a/m": b"->f", "n": b"->f"},
    ),
    "hard-to-sym-shift": Case(
        archive(
            member(b"a/b/l", LINK, link=b"../../x"),
            member(b"m", HARD, link=b"a/b/l"),
            member(b"x", FILE, b"1"),
        ),
        skipped=(b"m",),
        made={"a": None, "a/b": None, "a/b/l": b"->../../x", "x": b"1"},
    ),
    "hard-to-skipped": Case(
        archive(member(b"p", PIPE), member(b"q", HARD, link=b"p"), member(b"x", FILE, b"1")),
        skipped=(b"p", b"q"),
        made={"x": b"1"},
    ),
    "devices-are-skipped": Case(
        archive(
            member(b"null", CHAR),
            member(b"sda", BLOCK),
            member(b"pipe", PIPE),
            member(b"x", FILE, b"1"),
        ),
        skipped=(b"null", b"sda", b"pipe"),
        made={"x": b"1"},
    ),
    "whiteout": Case(
        archive(member(b".wh.x", CHAR), member(b"x", FILE, b"1")),
        skipped=(b".wh.x",),
        made={"x": b"1"},
    ),
    "names": Case(
        archive(
            *(
                member(name)
                for name in (b"-rf", b"--checkpoint-action=exec=sh", b"$(id)", b"a b", b"*")
            ),
            *(member(name) for name in (b"a\nb", b"\x1b[2Jx", b"\r", b"\xc2\x9bx")),
            pax((b"path", LONG)),
            member(b"long"),
        ),
        made={
            **dict.fromkeys(("-rf", "--checkpoint-action=exec=sh", "$(id)", "a b", "*"), b""),
            **dict.fromkeys(("a\nb", "\x1b[2Jx", "\r", "\x9bx", os.fsdecode(LONG)), b""),
        },
    ),
    "name-bidi": Case(archive(member("\u202etxt".encode())), made={"\u202etxt": b""}),
    "name-not-utf-8": Case(archive(member(b"\xff")), made={"\udcff": b""}),
    "deep": Case(
        archive(pax((b"path", DEEP_PATH)), member(b"x")),
        made={
            **{os.fsdecode(DEEP_PATH[: 2 * depth - 1]): None for depth in range(1, 512)},
            os.fsdecode(DEEP_PATH): b"",
        },
    ),
    "setuid": Case(archive(member(b"x", FILE, b"1", mode=0o6755)), made={"x": b"1"}),
    "uid-huge": Case(archive(member(b"x", FILE, b"1", uid=2**32)), made={"x": b"1"}),
    "xattrs": Case(
        archive(
            pax((b"SCHILY.xattr.security.capability", b"\1\0\0\2" + bytes(16))),
            member(b"x", FILE, b"1"),
        ),
        made={"x": b"1"},
    ),
    "git-archive": Case(
        archive(pax((b"comment", b"0" * 40), kind=b"g"), member(b"x", FILE, b"1")),
        made={"x": b"1"},
    ),
    "pre-sym-file": Case(
        archive(member(b"file", FILE, b"1")),
        made={"file": b"1"},
        before=_link_in_dest("../secret", "file"),
    ),
    "pre-sym-dangling": Case(
        archive(member(b"file", FILE, b"1")),
        made={"file": b"1"},
        before=_link_in_dest("../new", "file"),
    ),
    "pre-hardlink": Case(
        archive(member(b"file", FILE, b"1")), made={"file": b"1"}, before=_hardlink_in_dest
    ),
    "pre-merge": Case(
        archive(member(b"x", FOLDER), member(b"x/new", FILE, b"1")),
        made={"x": None, "x/new": b"1", "x/kept": b"kept"},
        before=_folder_in_dest,
    ),
}
