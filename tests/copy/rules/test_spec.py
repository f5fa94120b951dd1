from __future__ import annotations

import os

import pytest

from pycrictl.copy.rules.spec import (
    ContainerPath,
    CopyFrom,
    CopyTo,
    Existing,
    LocalPath,
    Meeting,
    PathText,
    SourceKind,
    check_container_path,
    meet,
    parse,
    parse_side,
    place,
    take_apart,
)
from pycrictl.errors import CopyError, UsageError

NOTHING, FILE, DIRECTORY, SPECIAL = Existing


# Arguments


@pytest.mark.parametrize(
    ("text", "side"),
    [
        ("web:/etc", ContainerPath("", "web", b"/etc")),
        ("pod/web:/etc/", ContainerPath("pod", "web", b"/etc/")),
        ("ns/pod/web:/etc", ContainerPath("ns/pod", "web", b"/etc")),
        ("web:/", ContainerPath("", "web", b"/")),
        ("web:/a:b", ContainerPath("", "web", b"/a:b")),
        ("web:/a/./b/.", ContainerPath("", "web", b"/a/./b/.")),
        ("web:/...", ContainerPath("", "web", b"/...")),
        ("web:/\udcff", ContainerPath("", "web", b"/\xff")),
        ("0123abc:/x y\n", ContainerPath("", "0123abc", b"/x y\n")),
        ("file", LocalPath(b"file")),
        ("-", LocalPath(b"-")),
        ("./-", LocalPath(b"./-")),
        ("dir/file", LocalPath(b"dir/file")),
        ("/abs", LocalPath(b"/abs")),
        ("./a:b", LocalPath(b"./a:b")),
        ("../a:/b", LocalPath(b"../a:/b")),
        ("/a:/b", LocalPath(b"/a:/b")),
        (".", LocalPath(b".")),
        ("-rf", LocalPath(b"-rf")),
    ],
)
def test_sides(text: str, side: ContainerPath | LocalPath) -> None:
    assert parse_side(text) == side


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a path is empty"),
        ("web:etc", "not absolute"),
        ("web:", "not absolute"),
        ("a:b", "not absolute"),
        (r"C:\data", "not absolute"),
        ("web:/a/../b", r'contains "\.\."'),
        ("web:/..", r'contains "\.\."'),
        ("web:/a\0", "contains a NUL"),
        (":/etc", "does not name a container"),
        ("pod/:/etc", "does not name a container"),
    ],
)
def test_wrong_sides(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_side(text)


def test_directions() -> None:
    assert parse("f", "web:/f") == CopyTo(LocalPath(b"f"), ContainerPath("", "web", b"/f"))
    assert parse("web:/f", "-") == CopyFrom(ContainerPath("", "web", b"/f"), LocalPath(b"-"))
    assert LocalPath(b"-").is_stream
    assert not LocalPath(b"./-").is_stream


@pytest.mark.parametrize(
    ("source", "destination", "message"),
    [
        ("a:/x", "b:/y", "both"),
        ("a", "b", "neither"),
        ("-", "-", "neither"),
        ("./a:/x", "b", "nei"),
    ],
)
def test_exactly_one_side_is_in_a_container(source: str, destination: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as info:
        parse(source, destination)
    assert info.value.hint


def test_the_path_of_a_request_is_checked_alike() -> None:
    check_container_path(b"/a")
    with pytest.raises(UsageError, match=r'"\\xff" is not absolute'):
        check_container_path(b"\xff")


# Taking a path apart


@pytest.mark.parametrize(
    ("path", "taken"),
    [
        (b"/a/b", PathText(b"/a/b", b"b", False, False)),
        (b"/a/b/", PathText(b"/a/b", b"b", True, False)),
        (b"/a/b//", PathText(b"/a/b", b"b", True, False)),
        (b"/a/b/.", PathText(b"/a/b", b"b", True, True)),
        (b"/a/b/./", PathText(b"/a/b", b"b", True, True)),
        (b"/a/b/./.", PathText(b"/a/b", b"b", True, True)),
        (b"b", PathText(b"b", b"b", False, False)),
        (b"b/.", PathText(b"b", b"b", True, True)),
        (b".", PathText(b".", b"", True, True)),
        (b"./", PathText(b".", b"", True, True)),
        (b"..", PathText(b"..", b"", True, True)),
        (b"a/..", PathText(b"a/..", b"", True, True)),
        (b"/", PathText(b"/", b"", True, True)),
        (b"//", PathText(b"/", b"", True, True)),
        (b"/.", PathText(b"/", b"", True, True)),
        (b".hidden", PathText(b".hidden", b".hidden", False, False)),
        (b"a b\n/\xff", PathText(b"a b\n/\xff", b"\xff", False, False)),
    ],
)
def test_take_apart(path: bytes, taken: PathText) -> None:
    assert take_apart(path) == taken


# Where the copy goes: source, its name, destination, what is there -> its name there

PLACES = [
    ("file", b"src", b"/d", NOTHING, b"d"),
    ("file", b"src", b"/d/", NOTHING, "there is no directory"),
    ("file", b"src", b"/d/.", NOTHING, "there is no directory"),
    ("file", b"src", b"/d", FILE, b"d"),
    ("file", b"src", b"/d/", FILE, "is not a directory"),
    ("file", b"src", b"/d", DIRECTORY, b"src"),
    ("file", b"src", b"/d/", DIRECTORY, b"src"),
    ("file", b"src", b"/", DIRECTORY, b"src"),
    ("file", b"src", b".", DIRECTORY, b"src"),
    ("directory", b"src", b"/d", NOTHING, b"d"),
    ("directory", b"src", b"/d/", NOTHING, b"d"),
    ("directory", b"src", b"/d/.", NOTHING, b"d"),
    ("directory", b".", b"/d", NOTHING, b"d"),
    ("directory", b"src", b"/d", FILE, "over the file"),
    ("directory", b".", b"/d", FILE, "over the file"),
    ("directory", b"src", b"/d/", FILE, "is not a directory"),
    ("directory", b"src", b"/d", DIRECTORY, b"src"),
    ("directory", b".", b"/d", DIRECTORY, None),
    ("directory", b".", b"/d/", DIRECTORY, None),
    ("directory", b"src", b"..", NOTHING, "there is no directory"),
    ("archive", b"src", b"/d", DIRECTORY, None),
    ("archive", b"src", b"/d", NOTHING, "there is no directory"),
    ("archive", b"src", b"/d", FILE, "over the file"),
    ("file", b"src", b"/d", SPECIAL, "never replaced"),
    ("directory", b"src", b"/d", SPECIAL, "never replaced"),
    ("archive", b"src", b"/d", SPECIAL, "never replaced"),
]


@pytest.mark.parametrize(("source", "name", "destination", "existing", "result"), PLACES)
def test_places(
    source: str, name: bytes, destination: bytes, existing: Existing, result: bytes | str | None
) -> None:
    kind, text = SourceKind(source), take_apart(destination)
    if isinstance(result, str):
        with pytest.raises(CopyError, match=result) as info:
            place(kind, name, destination=text, existing=existing)
        assert os.fsdecode(text.path) in info.value.message
    else:
        assert place(kind, name, destination=text, existing=existing) == result


@pytest.mark.parametrize(
    ("new", "old", "no_clobber", "result"),
    [
        (FILE, NOTHING, False, Meeting.MAKE),
        (FILE, NOTHING, True, Meeting.MAKE),
        (DIRECTORY, NOTHING, False, Meeting.MAKE),
        (FILE, FILE, False, Meeting.REPLACE),
        (FILE, FILE, True, Meeting.KEEP),
        (DIRECTORY, DIRECTORY, False, Meeting.MERGE),
        (DIRECTORY, DIRECTORY, True, Meeting.MERGE),
        (FILE, DIRECTORY, False, None),
        (FILE, DIRECTORY, True, None),
        (DIRECTORY, FILE, False, None),
        (DIRECTORY, FILE, True, None),
        *((new, SPECIAL, keep, None) for new in (FILE, DIRECTORY) for keep in (False, True)),
    ],
)
def test_meetings(new: Existing, old: Existing, no_clobber: bool, result: Meeting | None) -> None:
    if result is None:
        why = (
            f"a {new.value} over the {old.value} x"
            if old is not SPECIAL
            else f"^x is a {old.value}"
        )
        with pytest.raises(CopyError, match=why):
            meet(new, old, no_clobber=no_clobber, shown="x")
    else:
        assert meet(new, old, no_clobber=no_clobber, shown="x") is result
