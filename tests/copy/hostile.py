"""Archives that attack the program unpacking them, and honest ones that resemble them.

Every case is unpacked into the directory ``dest`` of a folder that also contains the directories
``outside`` and ``dest-sibling``, and files (see ``build_surroundings``). No case may change
anything but ``dest``; a refused one may not change ``dest`` either.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from pycrictl.streams.wire.tar.header import END_OF_ARCHIVE
from tests.copy.trees import below
from tests.streams.wire.archives import member, patch, pax

__all__ = ["member", "patch", "pax"]

MARKER: Final = b"HOSTILE"
FILE, HARD, LINK, CHAR, BLOCK, FOLDER, PIPE = b"0", b"1", b"2", b"3", b"4", b"5", b"6"


@dataclass(frozen=True)
class Case:
    """One archive.

    Attributes:
        data: the archive.
        refused: the rule that refuses it, or part of the error message; None if it is accepted.
        skipped: names that are skipped while the rest is unpacked.
        made: what ``dest`` then contains: content of a file, ``->target`` of a link, None for a
            directory.
        before: prepares ``dest`` first.
    """

    data: bytes
    refused: str | None = None
    skipped: tuple[bytes, ...] = ()
    made: dict[str, bytes | None] | None = None
    before: Callable[[Path], None] | None = None


def archive(*members: bytes) -> bytes:
    return b"".join(members) + END_OF_ARCHIVE


folder = partial(member, kind=FOLDER, mode=0o755)
evil = partial(member, kind=FILE, data=MARKER)


def file(name: bytes, data: bytes) -> bytes:
    return member(name, FILE, data)


def sym(name: bytes, target: bytes) -> bytes:
    return member(name, LINK, link=target)


def hard(name: bytes, target: bytes) -> bytes:
    return member(name, HARD, link=target)


def bad(refused: str, *members: bytes, before: Callable[[Path], None] | None = None) -> Case:
    return Case(archive(*members), refused, before=before)


def good(made: dict[str, bytes | None], *members: bytes, **more: Any) -> Case:
    return Case(archive(*members), made=made, **more)


def build_surroundings(parent: Path) -> None:
    """Create ``dest``, and files, directories, links and a pipe around it that must not change."""
    for folder in ("dest", "dest-sibling", "outside", "outside/inner"):
        (parent / folder).mkdir()
    for name in ("secret", "outside/secret", "outside/inner/file", "dest-sibling/file"):
        (parent / name).write_text("keep me")
        (parent / name).chmod(0o640)
        os.utime(parent / name, (1_000_000_000, 1_000_000_000))
    (parent / "link").symlink_to("outside/secret")
    os.mkfifo(parent / "pipe")


def snapshot(top: Path, *, but: Iterable[str] = ()) -> dict[str, tuple[object, ...]]:
    """Return everything below ``top`` as reported by ``lstat``, with the contents of files.

    The times of directories are left out: a stage that is created and removed changes them.
    """
    left_out = set(but)
    return {
        name: (
            status.st_mode, status.st_uid, status.st_gid, status.st_ino, status.st_nlink,
            None if stat.S_ISDIR(status.st_mode) else status.st_mtime_ns, content,
        )
        for name, status, content in below(top)
        if name.partition("/")[0] not in left_out
    }  # fmt: skip


def _link_in_dest(target: str, name: str = "dir") -> Callable[[Path], None]:
    return lambda dest: (dest / name).symlink_to(target)


def _folder_in_dest(dest: Path) -> None:
    (dest / "x").mkdir()
    (dest / "x/kept").write_text("kept")


def _file_in_dest(dest: Path) -> None:
    (dest / "x").write_text("kept")


LONG: Final = b"n" * 255
DEEP_PATH: Final = b"/".join([b"d"] * 512)

HOSTILE: Final[dict[str, Case]] = {
    # Names that point outside
    "dotdot": bad("dot-dot", evil(b"../secret")),
    "dotdot-dir-chmod": bad("dot-dot", member(b"../outside/", FOLDER, mode=0o777)),
    "dotdot-second": bad("dot-dot", evil(b"good"), evil(b"../secret")),
    "absolute-dotdot": bad("dot-dot", evil(b"/../secret")),
    "absolute-file-root": bad("top", evil(b"/")),
    "ustar-prefix": bad("dot-dot", patch(evil(b"secret"), 345, b"..")),
    "pax-path-override": bad("dot-dot", pax((b"path", b"../secret")), evil(b"good")),
    "gnu-longname": bad("dot-dot", member(b"L", b"L", b"../secret\0"), evil(b"good")),
    "gnu-longlink": bad("dot-dot", member(b"K", b"K", b"../secret\0"), member(b"h", HARD)),
    # Links that point outside
    "sym-abs-dir": bad("below", sym(b"l", b"/tmp"), evil(b"l/x")),
    "sym-rel-dir": bad("below", sym(b"l", b"../outside"), evil(b"l/x")),
    "sym-four-links": bad(
        "below",
        folder(b"d"),
        sym(b"d/a", b"."),
        sym(b"b", b"d/a/.."),
        sym(b"c", b"b/.."),
        evil(b"c/secret"),
    ),
    "sym-empty": bad("link-target", member(b"l", LINK)),
    "sym-too-long": bad("link-target", member(b"K", b"K", b"x" * 4096 + b"\0"), member(b"l", LINK)),
    "file-root": bad("top", evil(b"./")),
    "pipe-root": bad("top", member(b".", PIPE)),
    # Hard links
    "hard-abs": bad("hard-link", hard(b"h", b"/etc/passwd")),
    "hard-dotdot": bad("dot-dot", hard(b"h", b"../secret")),
    "hard-missing": bad("hard-link", hard(b"h", b"nothing")),
    "hard-itself": bad("hard-link", hard(b"h", b"h")),
    "hard-dir": bad("hard-link", folder(b"d"), hard(b"h", b"d")),
    "hard-top": bad("hard-link", folder(b"."), hard(b"h", b".")),
    "hard-via-sym": bad("hard-link", sym(b"l", b"../outside"), hard(b"h", b"l/secret")),
    "hard-existing": bad("hard-link", hard(b"h", b"x"), before=_file_in_dest),
    "hard-below": bad("not-a-directory", evil(b"f"), hard(b"h", b"f"), evil(b"h/x")),
    # Impossible names
    "name-empty": bad("empty", patch(evil(b"x"), 0, b"\0")),
    "path-too-long": bad("too-long", pax((b"path", b"/".join([LONG] * 17))), evil(b"x")),
    "too-deep": bad("too-deep", pax((b"path", DEEP_PATH + b"/x")), evil(b"x")),
    "aregtype-longname-slash": bad(
        "trailing-slash", member(b"L", b"L", b"n" * 150 + b"/\0"), member(b"x", b"\0", MARKER)
    ),
    # Repeated names, and changes of type
    "dup-then-below": bad("type-change", evil(b"a"), sym(b"a", b"../outside"), evil(b"a/secret")),
    "dir-outward-below": bad(
        "type-change", folder(b"d"), sym(b"d", b"../outside"), evil(b"d/secret")
    ),
    "filled-dir-sym": bad("type-change", evil(b"d/x"), sym(b"d", b"../outside")),
    "filled-dir-file": bad("type-change", evil(b"x/y"), evil(b"x")),
    "hard-to-replaced": bad("type-change", evil(b"f"), folder(b"f"), hard(b"h", b"f")),
    "hard-to-itself-again": bad("hard-link", evil(b"f"), hard(b"f", b"f")),
    "twice": bad("duplicate", file(b"x", b"1"), file(b"./x", b"22")),
    "twice-deep": bad("duplicate", file(b"a/x", b"1"), member(b"b"), file(b"a//x", b"2")),
    "hard-then-original": bad("duplicate", evil(b"f"), hard(b"h", b"f"), evil(b"f")),
    "link-then-file": bad("type-change", sym(b"l", b"x"), file(b"l", b"1")),
    "dir-then-link": bad("type-change", member(b"d", FOLDER, mode=0o777), sym(b"d", b"e")),
    "file-then-pipe": bad("type-change", file(b"x", b"1"), member(b"x", PIPE)),
    "file-below-file": bad("not-a-directory", evil(b"x"), evil(b"x/y")),
    "below-skipped": bad("not-a-directory", member(b"x", PIPE), evil(b"x/y")),
    # Errors of the reader, in the middle and at the end of an archive
    "size-huge": Case(member(b"x", size=2**62), "too early"),
    "text": Case(b"tar: /x: No such file\n".ljust(512), "not a tar archive"),
    "nothing": Case(b"", "too early"),
    "trunc-content": Case(archive(file(b"x", b"y" * 2000))[:1000], "too early"),
    "data-after-end": Case(archive(evil(b"x")) + archive(evil(b"y")), "data after the end"),
    "checksum": Case(evil(b"x") + archive(b"Y" + evil(b"x")[1:]), "checksum"),
    # Entries that exist already
    "pre-sym-dir": bad(
        "directory over the file", evil(b"dir/secret"), before=_link_in_dest("../outside")
    ),
    "pre-dir-in-the-way": bad(
        "file over the directory", evil(b"a"), evil(b"x"), before=_folder_in_dest
    ),
    "pre-file-in-the-way": bad(
        "directory over the file", evil(b"a"), evil(b"x/y"), before=_file_in_dest
    ),
    "pre-fifo": bad(
        "device, pipe or socket",
        *(evil(b"a"), evil(b"file")),
        before=lambda dest: os.mkfifo(dest / "file"),
    ),
    "pre-keep-on-trunc": Case(archive(evil(b"x"))[:-512], "too early", before=_file_in_dest),
}

HONEST: Final[dict[str, Case]] = {
    "empty-archive": good({}),
    "dot-slash": good(
        {"a": None, "a/x": b"1"}, folder(b"./"), folder(b"./a"), file(b"./a/x", b"1")
    ),
    "implied-parents": good({"a": None, "a/b": None, "a/b/x": b""}, member(b"a/b/x")),
    "dots-in-names": good(
        {"..x": b"", "...": b"", "a..": None}, member(b"..x"), member(b"..."), folder(b"a..")
    ),
    "dir-twice": good({"a": None}, folder(b"a"), folder(b"a/")),
    "file-before-its-dir": good({"a": None, "a/x": b""}, member(b"a/x"), folder(b"a")),
    "sym-inside": good(
        {"a": None, "a/up": b"->../x", "l": b"->a", "x": b"1"},
        folder(b"a"),
        sym(b"a/up", b"../x"),
        sym(b"l", b"a"),
        file(b"x", b"1"),
    ),
    # Names as tar -P writes them
    "absolute": good(
        {"tmp": None, "tmp/x": b"1", "y": b"2"},
        folder(b"/"),
        file(b"/tmp/x", b"1"),
        file(b"//y", b"2"),
    ),
    "absolute-links": good(
        {"f": b"1", "h": b"1"},
        file(b"/f", b"1"),
        hard(b"/h", b"/f"),
        sym(b"/l", b"/etc/passwd"),
        skipped=(b"/l",),
    ),
    "sym-k8s-volume": good(
        {
            "..2026_01_02": None,
            "..2026_01_02/key": b"v",
            "..data": b"->..2026_01_02",
            "key": b"->..data/key",
        },
        folder(b"..2026_01_02"),
        file(b"..2026_01_02/key", b"v"),
        sym(b"..data", b"..2026_01_02"),
        sym(b"key", b"..data/key"),
    ),
    "sym-out-is-skipped": good(
        {"x": b"1"},
        sym(b"out", b"../outside/secret"),
        sym(b"abs", b"/etc/passwd"),
        sym(b"tricky", b"a/../../outside"),
        file(b"x", b"1"),
        skipped=(b"out", b"abs", b"tricky"),
    ),
    "hard": good({"a": None, "a/f": b"1", "g": b"1"}, file(b"a/f", b"1"), hard(b"g", b"./a/f")),
    "hard-to-sym": good(
        {"a": None, "a/l": b"->f", "a/m": b"->f", "n": b"->f"},
        sym(b"a/l", b"f"),
        hard(b"a/m", b"a/l"),
        hard(b"n", b"a/m"),
    ),
    "hard-to-sym-shift": good(
        {"a": None, "a/b": None, "a/b/l": b"->../../x", "x": b"1"},
        sym(b"a/b/l", b"../../x"),
        hard(b"m", b"a/b/l"),
        file(b"x", b"1"),
        skipped=(b"m",),
    ),
    "hard-to-skipped": good(
        {"x": b"1"}, member(b"p", PIPE), hard(b"q", b"p"), file(b"x", b"1"), skipped=(b"p", b"q")
    ),
    "devices-are-skipped": good(
        {"x": b"1"},
        member(b"null", CHAR),
        member(b"sda", BLOCK),
        member(b"pipe", PIPE),
        file(b"x", b"1"),
        skipped=(b"null", b"sda", b"pipe"),
    ),
    "names": good(
        {
            **dict.fromkeys(("-rf", "--checkpoint-action=exec=sh", "$(id)", "a b", "*"), b""),
            **dict.fromkeys(("a\nb", "\x1b[2Jx", "\r", "\x9bx", os.fsdecode(LONG)), b""),
        },
        *(
            member(name)
            for name in (b"-rf", b"--checkpoint-action=exec=sh", b"$(id)", b"a b", b"*")
        ),
        *(member(name) for name in (b"a\nb", b"\x1b[2Jx", b"\r", b"\xc2\x9bx")),
        pax((b"path", LONG)),
        member(b"long"),
    ),
    "name-bidi": good({"\u202etxt": b""}, member("\u202etxt".encode())),
    "name-not-utf-8": good({"\udcff": b""}, member(b"\xff")),
    "deep": good(
        {
            **{os.fsdecode(DEEP_PATH[: 2 * depth - 1]): None for depth in range(1, 512)},
            os.fsdecode(DEEP_PATH): b"",
        },
        pax((b"path", DEEP_PATH)),
        member(b"x"),
    ),
    "setuid": good({"x": b"1"}, member(b"x", FILE, b"1", mode=0o6755)),
    "xattrs": good(
        {"x": b"1"},
        pax((b"SCHILY.xattr.security.capability", b"\x01\0\x00\x02" + bytes(16))),
        file(b"x", b"1"),
    ),
    "pre-sym-file": good(
        {"file": b"1"}, file(b"file", b"1"), before=_link_in_dest("../secret", "file")
    ),
    "pre-sym-dangling": good(
        {"file": b"1"}, file(b"file", b"1"), before=_link_in_dest("../new", "file")
    ),
    "pre-hardlink": good(
        {"file": b"1"},
        file(b"file", b"1"),
        before=lambda dest: (dest / "file").hardlink_to(dest.parent / "secret"),
    ),
    "pre-merge": good(
        {"x": None, "x/new": b"1", "x/kept": b"kept"},
        folder(b"x"),
        file(b"x/new", b"1"),
        before=_folder_in_dest,
    ),
}
