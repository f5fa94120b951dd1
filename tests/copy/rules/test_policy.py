from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.copy.rules.policy import (
    MAX_ID,
    MAX_TIME_NS,
    AcceptedEntry,
    Judge,
    Make,
    Replaced,
    Rules,
    Skipped,
    stays_inside,
    take_apart,
)
from pycrictl.errors import EntryRefused
from pycrictl.wire.tar.header import Entry, EntryType

PLAIN = Rules()
KEEP = Rules(archive=True)
D, F, L, H = EntryType.DIRECTORY, EntryType.FILE, EntryType.SYMLINK, EntryType.HARDLINK


def verdicts(*entries: Entry, rules: Rules = PLAIN, **how: Any) -> list[AcceptedEntry | Skipped]:
    judge = Judge(rules, **how)
    return [judge.judge(entry) for entry in entries]


def rule_of(*entries: Entry, rules: Rules = PLAIN, **how: Any) -> str:
    """The rule that the last of the entries breaks; the others are taken."""
    judge = Judge(rules, **how)
    for entry in entries[:-1]:
        judge.judge(entry)
    with pytest.raises(EntryRefused) as info:
        judge.judge(entries[-1])
    assert info.value.path == entries[-1].name
    assert info.value.reason in info.value.message
    assert info.value.message.isprintable()
    return info.value.rule


# Names


@pytest.mark.parametrize(
    ("name", "path"),
    [
        (b"a", (b"a",)),
        (b"./a//b/.", (b"a", b"b")),
        (b".", ()),
        (b"...", (b"...",)),
        (b"..a/b..", (b"..a", b"b..")),
        (b"\xff\n", (b"\xff\n",)),
        (b"n" * 255, (b"n" * 255,)),
        (b"/".join([b"d"] * 512), (b"d",) * 512),
    ],
)
def test_names(name: bytes, path: tuple[bytes, ...]) -> None:
    assert take_apart(name, what=name) == path


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        (b"", "empty"),
        (b"/../a", "dot-dot"),
        (b"a\0", "nul"),
        (b"..", "dot-dot"),
        (b"a/../b", "dot-dot"),
        (b"a/..", "dot-dot"),
        (b"n" * 256, "too-long"),
        (b"a/" * 2047 + b"aa", "too-long"),
        (b"/".join([b"d"] * 513), "too-deep"),
    ],
)
def test_impossible_names(name: bytes, rule: str) -> None:
    assert rule_of(Entry(name, F), single=False) == rule
    if name:
        assert rule_of(Entry(b"f", F), Entry(b"h", H, link=name), single=False) == rule


@given(st.binary(max_size=40))
def test_no_name_leads_out(name: bytes) -> None:
    try:
        path = take_apart(name, what=name)
    except EntryRefused:
        return
    assert all(part not in (b"", b".", b"..") and b"/" not in part for part in path)
    assert not any(b"\0" in part for part in path)


# Links


@pytest.mark.parametrize(
    ("target", "depth", "inside"),
    [
        (b"x", 0, True),
        (b"x/y", 0, True),
        (b".", 0, True),
        (b"..", 0, False),
        (b"..", 1, True),
        (b"../x", 1, True),
        (b"../../x", 1, False),
        (b"../../x", 2, True),
        (b"./../x", 1, True),
        (b".././../x", 1, False),
        (b"a/..", 5, False),
        (b"../a/../x", 5, False),
        (b"/", 5, False),
        (b"/x", 5, False),
        (b"..x", 0, True),
        (b"...", 0, True),
        (b"..//..//x", 1, False),
    ],
)
def test_inside(target: bytes, depth: int, inside: bool) -> None:
    assert stays_inside(target, depth=depth) is inside


@given(
    st.lists(st.sampled_from([b"..", b".", b"a", b"b", b""]), max_size=8).map(b"/".join),
    st.integers(0, 4),
)
def test_a_target_inside_never_rises_above_the_top(target: bytes, depth: int) -> None:
    level = depth
    lowest = level
    for part in target.split(b"/"):
        level += (part not in (b"", b".", b"..")) - (part == b"..")
        lowest = min(lowest, level)
    if stays_inside(target, depth=depth):
        assert lowest >= 0
        assert not target.startswith(b"/")


def test_a_link_counts_from_the_top_of_what_is_copied() -> None:
    [_, inner] = verdicts(Entry(b"top", D), Entry(b"top/l", L, link=b"../beside"))
    assert isinstance(inner, Skipped)


@pytest.mark.parametrize("target", [b"", b"a\0b", b"x" * 4096])
def test_impossible_targets(target: bytes) -> None:
    assert rule_of(Entry(b"l", L, link=target), single=False) == "link-target"


def test_a_hard_link_names_a_file_of_the_same_top() -> None:
    [_, item, again] = verdicts(
        Entry(b"top/f", F),
        Entry(b"top/d/h", H, link=b"./top//f"),
        Entry(b"top/i", H, link=b"top/d/h"),
    )
    assert item == AcceptedEntry((b"d", b"h"), Make.HARDLINK, 0, 0o644, original=(b"f",))
    assert isinstance(again, AcceptedEntry)
    assert again.original == (b"d", b"h")
    assert rule_of(Entry(b"top/f", F), Entry(b"top/h", H, link=b"f")) == "beside"


# The top


@pytest.mark.parametrize("name", [b"other", b"topper/x", b"."])
def test_the_first_entry_names_the_top(name: bytes) -> None:
    assert rule_of(Entry(b"top/a", F), Entry(name, F)) == "beside"


@pytest.mark.parametrize("kind", [F, L, H, EntryType.FIFO])
def test_the_top_of_an_archive_is_a_directory(kind: EntryType) -> None:
    assert rule_of(Entry(b".", kind, link=b"x"), single=False) == "top"
    assert rule_of(Entry(b".", kind, link=b"x"), single=True) == "top"


# Twice, and in the way


@pytest.mark.parametrize(
    ("first", "second", "before", "after"),
    [
        (Entry(b"x", F), Entry(b"./x", F), Make.FILE, Make.FILE),
        (Entry(b"x", F), Entry(b"/x", L, link=b"y"), Make.FILE, Make.SYMLINK),
        (Entry(b"x", L, link=b"y"), Entry(b"x", D), Make.SYMLINK, Make.DIRECTORY),
        (Entry(b"x", D), Entry(b"x", F), Make.DIRECTORY, Make.FILE),
        (Entry(b"x", D), Entry(b"x", L, link=b"/"), Make.DIRECTORY, None),
        (Entry(b"x", EntryType.FIFO), Entry(b"x", EntryType.FIFO), None, None),
    ],
)
def test_the_last_of_a_name_counts(
    first: Entry, second: Entry, before: Make | None, after: Make | None
) -> None:
    judge = Judge(Rules(), single=False)
    judge.judge(first)
    assert judge.replaced is None
    judge.judge(second)
    assert judge.replaced == Replaced((b"x",), before, after)
    assert judge.has_absolute == second.name.startswith(b"/")
    judge.judge(Entry(b"z", F))
    assert judge.replaced is None


@pytest.mark.parametrize("second", [Entry(b"t", F), Entry(b"t", L, link=b"x"), Entry(b"t/", D)])
def test_the_top_is_not_replaced(second: Entry) -> None:
    assert rule_of(Entry(b"t", F), second) in ("duplicate", "type-change")


# What is kept


def test_modes_times_and_owners() -> None:
    entry = Entry(b"f", F, 3, 0o7777, 5, 6, 7)
    [item] = verdicts(entry, rules=Rules(umask=0o027))
    assert item == AcceptedEntry((), Make.FILE, 3, 0o750)
    [item] = verdicts(entry, rules=Rules(archive=True, umask=0o027))
    assert item == AcceptedEntry((), Make.FILE, 3, 0o7777, 5, (6, 7))


@pytest.mark.parametrize(
    ("mtime_ns", "kept"),
    [(0, 0), (-1, None), (MAX_TIME_NS, None), (MAX_TIME_NS - 1, 2**40 * 10**9 - 1)],
)
def test_impossible_times_are_not_kept(mtime_ns: int, kept: int | None) -> None:
    [item] = verdicts(Entry(b"f", F, mtime_ns=mtime_ns), rules=KEEP)
    assert isinstance(item, AcceptedEntry)
    assert item.mtime_ns == kept


@pytest.mark.parametrize(("uid", "gid"), [(MAX_ID + 1, 0), (0, 2**32), (-1, 0)])
def test_impossible_owners(uid: int, gid: int) -> None:
    assert rule_of(Entry(b"f", F, uid=uid, gid=gid), rules=KEEP) == "owner"
    assert isinstance(verdicts(Entry(b"f", F, uid=uid, gid=gid))[0], AcceptedEntry)


# Limits


def test_sizes_are_added_up() -> None:
    rules = Rules(max_size_bytes=10)
    entries = [Entry(b"t/a", F, 4), Entry(b"t/b", F, 6), Entry(b"t/c", F, 0)]
    assert all(isinstance(item, AcceptedEntry) for item in verdicts(*entries, rules=rules))
    assert rule_of(*entries, Entry(b"t/d", F, 1), rules=rules) == "too-large"
    assert rule_of(Entry(b"t", F, 11), rules=rules) == "too-large"
    assert rule_of(Entry(b"t", F, 2**64 - 1), rules=rules) == "too-large"
    assert rule_of(Entry(b"t", F, -1)) == "size"
    assert rule_of(Entry(b"t", F, 1), rules=Rules(max_size_bytes=0)) == "too-large"
    assert isinstance(verdicts(Entry(b"t", F, 0), rules=Rules(max_size_bytes=0))[0], AcceptedEntry)
