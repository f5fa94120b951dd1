from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from pycrictl.base.errors import PycrictlError, UsageError
from pycrictl.copy.rules.spec import (
    ContainerPath,
    CopyFrom,
    CopyTo,
    Existing,
    LocalPath,
    Meeting,
    SourceKind,
    has_wildcards,
    is_match,
    meet,
    parse,
    parse_side,
    place,
    take_apart,
)

NOTHING, FILE, DIRECTORY, SPECIAL = Existing


def failure(expected: object, act: Callable[[], object]) -> PycrictlError | None:
    """Check the result of an act, or its error if ``expected`` is text; return that error."""
    if isinstance(expected, str):
        with pytest.raises(PycrictlError, match=expected) as info:
            act()
        return info.value
    assert act() == expected
    return None


@pytest.mark.parametrize(
    ("text", "side"),
    [
        ("web:/etc", ContainerPath("", "web", b"/etc")),
        ("pod/web:/etc/", ContainerPath("pod", "web", b"/etc/")),
        ("ns/pod/web:/etc", ContainerPath("ns/pod", "web", b"/etc")),
        ("web:/a:b", ContainerPath("", "web", b"/a:b")),
        ("web:/a/./b/.", ContainerPath("", "web", b"/a/./b/.")),
        ("web:/...", ContainerPath("", "web", b"/...")),
        ("web:/\udcff", ContainerPath("", "web", b"/\xff")),
        *((text, LocalPath(text.encode())) for text in ("file", "-", "./-", "dir/file", "/a:/b")),
        *((text, LocalPath(text.encode())) for text in ("./a:b", "../a:/b", ".", "-rf")),
        ("", "a path is empty"),
        ("web:etc/hosts", ContainerPath("", "web", b"/etc/hosts")),
        ("web:.", ContainerPath("", "web", b"/.")),
        ("web:", "not absolute"),
        ("web:a/../b", r'contains "\.\."'),
        ("web:/a/../b", r'contains "\.\."'),
        ("web:/..", r'contains "\.\."'),
        ("web:/a\0", "contains a NUL"),
        (":/etc", "does not name a container"),
        ("pod/:/etc", "does not name a container"),
    ],
)
def test_sides(text: str, side: ContainerPath | LocalPath | str) -> None:
    error = failure(side, lambda: parse_side(text))
    assert error is None or isinstance(error, UsageError)


@pytest.mark.parametrize(
    ("source", "destination", "result"),
    [
        ("f", "web:/f", CopyTo([LocalPath(b"f")], ContainerPath("", "web", b"/f"))),
        ("web:/f", "-", CopyFrom([ContainerPath("", "web", b"/f")], LocalPath(b"-"))),
        ("a:/x", "b:/y", "both"),
        ("-", "-", "neither"),
        ("./a:/x", "b", "neither"),
    ],
)
def test_exactly_one_side_is_in_a_container(
    source: str, destination: str, result: CopyTo | CopyFrom | str
) -> None:
    error = failure(result, lambda: parse([source], destination))
    assert error is None or (isinstance(error, UsageError) and error.hint)


@pytest.mark.parametrize(
    ("source", "destination", "hint"),
    [
        ("/etc/hostname", "box/main", "add the path in the container: box/main:/PATH"),
        ("box", "./here", "add the path in the container: box:/PATH"),
        ("box", "-", "add the path in the container: box:/PATH"),
        ("f", "box", "add the path in the container: f:/PATH or box:/PATH"),
        ("/f", "./d", "name one as CONTAINER:PATH"),
    ],
)
def test_a_container_without_a_path(source: str, destination: str, hint: str) -> None:
    with pytest.raises(UsageError, match="neither side is in a container") as info:
        parse([source], destination)
    assert info.value.hint == hint


@pytest.mark.parametrize(
    ("sources", "destination", "result"),
    [
        (["a/f", "b/g"], "c:/d", ([b"a/f", b"b/g"], b"/d")),
        (["c:/f", "d:/g", "c:/*"], "d", ([b"/f", b"/g", b"/*"], b"d")),
        (["a/.", "b/."], "c:/d", ([b"a/.", b"b/."], b"/d")),
        (["a", "c:/f"], "d", "some sources are in containers"),
        (["a", "-"], "c:/d", "an archive must be the only source"),
        (["c:/f", "d:/g"], "-", "an archive must be the only source"),
        (["a/f", "b/f/"], "c:/d", '"a/f" and "b/f/" would have the same name'),
        (["c:/f", "d:/f"], "d", "would have the same name"),
        (["c:/f", "d:/g"], "c:/d", "both"),
        (["a", "b"], "d", "neither"),
    ],
)
def test_several_sources(
    sources: list[str], destination: str, result: tuple[list[bytes], bytes] | str
) -> None:
    def parsed() -> tuple[list[bytes], bytes]:
        spec = parse(sources, destination)
        return [source.path for source in spec.sources], spec.destination.path

    failure(result, parsed)


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        (b"*", ["a", "b.log", "[c]"]),
        (b".*", [".d"]),
        (b"*.log", ["b.log"]),
        (b"?", ["a"]),
        (b"[!a]*", ["b.log", "[c]"]),
        (b"[c]", ["[c]"]),  # exactly this name
        (b"z*", []),
    ],
)
def test_wildcards(pattern: bytes, matches: list[str]) -> None:
    assert has_wildcards(b"/t/" + pattern)
    assert not has_wildcards(b"/t/" + pattern + b"/.")
    names = ("a", "b.log", "[c]", ".d")
    assert [name for name in names if is_match(name.encode(), pattern)] == matches


def test_where_a_relative_path_would_mean_something_else() -> None:
    with pytest.raises(UsageError, match="not absolute"):
        parse(["pod:etc"], "-", adds_slash=False)


@pytest.mark.parametrize(
    ("path", "taken"),
    [
        (b"/a/b", (b"/a/b", b"b", False, False)),
        (b"/a/b//", (b"/a/b", b"b", True, False)),
        (b"/a/b/.", (b"/a/b", b"b", True, True)),
        (b"/a/b/././", (b"/a/b", b"b", True, True)),
        (b"b/.", (b"b", b"b", True, True)),
        (b"./", (b".", b"", True, True)),
        (b"a/..", (b"a/..", b"", True, True)),
        (b"//", (b"/", b"", True, True)),
        (b"/.", (b"/", b"", True, True)),
        (b".hidden", (b".hidden", b".hidden", False, False)),
        (b"a b\n/\xff", (b"a b\n/\xff", b"\xff", False, False)),
    ],
)
def test_take_apart(path: bytes, taken: tuple[bytes, bytes, bool, bool]) -> None:
    assert take_apart(path) == taken


NO_DIRECTORY, OVER_FILE, NO_REPLACING = "there is no directory", "over the file", "never replaced"


# Source, destination, what exists there -> name of the copy. "directory ." copies its contents.
@pytest.mark.parametrize(
    ("source", "destination", "existing", "result"),
    [
        ("file src", b"/d", NOTHING, b"d"),
        ("file src", b"/d/", NOTHING, NO_DIRECTORY),
        ("file src", b"/d/.", NOTHING, NO_DIRECTORY),
        ("file src", b"/d", FILE, b"d"),
        ("file src", b"/d/", FILE, "is not a directory"),
        ("file src", b"/d", DIRECTORY, b"src"),
        ("file src", b".", DIRECTORY, b"src"),
        ("directory src", b"/d", NOTHING, b"d"),
        ("directory src", b"/d/.", NOTHING, b"d"),
        ("directory .", b"/d", NOTHING, b"d"),
        ("directory src", b"/d", FILE, OVER_FILE),
        ("directory .", b"/d", FILE, OVER_FILE),
        ("directory src", b"/d/", FILE, "is not a directory"),
        ("directory src", b"/d", DIRECTORY, b"src"),
        ("directory .", b"/d/", DIRECTORY, None),
        ("directory src", b"..", NOTHING, NO_DIRECTORY),
        ("archive src", b"/d", DIRECTORY, None),
        ("archive src", b"/d", NOTHING, NO_DIRECTORY),
        ("archive src", b"/d", FILE, "is not a directory"),
        *((f"{kind.value} src", b"/d", SPECIAL, NO_REPLACING) for kind in SourceKind),
    ],
)
def test_places(
    source: str, destination: bytes, existing: Existing, result: bytes | str | None
) -> None:
    kind, name = source.split()
    text = take_apart(destination)
    error = failure(
        result, lambda: place(SourceKind(kind), name.encode(), destination=text, existing=existing)
    )
    assert error is None or os.fsdecode(text.path) in error.message


@pytest.mark.parametrize(
    ("new", "old", "result"),
    [
        (FILE, NOTHING, Meeting.MAKE),
        (DIRECTORY, NOTHING, Meeting.MAKE),
        (FILE, FILE, Meeting.REPLACE),
        (DIRECTORY, DIRECTORY, Meeting.MERGE),
        (FILE, DIRECTORY, "a file over the directory x"),
        (DIRECTORY, FILE, "a directory over the file x"),
        (FILE, SPECIAL, "^x is a device"),
        (DIRECTORY, SPECIAL, "^x is a device"),
    ],
)
def test_meetings(new: Existing, old: Existing, result: Meeting | str) -> None:
    failure(result, lambda: meet(new, old, shown="x"))
