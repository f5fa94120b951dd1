"""Decisions about entries; the hostile corpus covers whole archives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.base.errors import EntryRefused
from pycrictl.copy.rules.policy import (
    MAX_ID,
    MAX_TIME_NS,
    AcceptedEntry,
    EntryPolicy,
    Rules,
    Skipped,
    stays_inside,
    take_apart,
)
from pycrictl.streams.wire.tar.header import Entry, EntryType

PLAIN = Rules()
KEEP = Rules(archive=True)
D, F, L, H = EntryType.DIRECTORY, EntryType.FILE, EntryType.SYMLINK, EntryType.HARDLINK
ANY = {"single": False}


REFUSED: list[tuple[str, list[Entry], dict[str, Any]]] = [
    ("nul", [Entry(b"a\0", F)], ANY),
    ("nul", [Entry(b"f", F), Entry(b"h", H, link=b"a\0")], ANY),
    ("too-long", [Entry(b"n" * 256, F)], ANY),
    ("link-target", [Entry(b"l", L, link=b"a\0b")], ANY),
    *(("beside", [Entry(b"t/a", F), Entry(name, F)], {}) for name in (b"u", b"tt/x", b".")),
    ("beside", [Entry(b"t/f", F), Entry(b"t/h", H, link=b"f")], {}),
    *(("top", [Entry(b".", kind, link=b"x")], ANY) for kind in (L, H)),
    ("top", [Entry(b".", F)], {}),
    ("duplicate", [Entry(b"t", F), Entry(b"t", F)], {}),
    ("type-change", [Entry(b"t", F), Entry(b"t", L, link=b"x")], {}),
    ("type-change", [Entry(b"t", F), Entry(b"t/", D)], {}),
    *(
        ("owner", [Entry(b"f", F, uid=uid, gid=gid)], {"rules": KEEP})
        for uid, gid in ((MAX_ID + 1, 0), (0, 2**32), (-1, 0))
    ),
    ("size", [Entry(b"t", F, -1)], {}),
    ("too-large", [Entry(b"t", F, 1)], {"rules": Rules(max_size_bytes=0)}),
    (
        "too-large",
        [Entry(b"t/a", F, 4), Entry(b"t/b", F, 6), Entry(b"t/c", F, 0), Entry(b"t/d", F, 1)],
        {"rules": Rules(max_size_bytes=10)},
    ),
]


@pytest.mark.parametrize(("rule", "entries", "how"), REFUSED)
def test_the_last_entry_is_refused(rule: str, entries: list[Entry], how: dict[str, Any]) -> None:
    policy = EntryPolicy(**{"rules": PLAIN, **how})
    for entry in entries[:-1]:
        policy.decide(entry)
    with pytest.raises(EntryRefused) as info:
        policy.decide(entries[-1])
    assert (info.value.rule, info.value.path) == (rule, entries[-1].name)
    assert info.value.reason in info.value.message
    assert info.value.message.isprintable()


@given(st.binary(max_size=40))
def test_no_name_leads_out(name: bytes) -> None:
    try:
        path = take_apart(name, entry_name=name)
    except EntryRefused:
        return
    assert all(part not in (b"", b".", b"..") and b"/" not in part for part in path)
    assert not any(b"\0" in part for part in path)


@pytest.mark.parametrize(
    ("target", "depth", "inside"),
    [
        (b"x/y", 0, True),
        (b".", 0, True),
        (b"..", 0, False),
        (b"..", 1, True),
        (b"../../x", 1, False),
        (b"../../x", 2, True),
        (b".././../x", 1, False),
        (b"..//..//x", 1, False),
        (b"../a/../x", 5, False),
        (b"/", 5, False),
        (b"..x", 0, True),
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


def test_links_count_from_the_top_of_what_is_copied() -> None:
    assert isinstance(EntryPolicy(PLAIN).decide(Entry(b"top/l", L, link=b"../beside")), Skipped)


@pytest.mark.parametrize(
    ("entry", "rules", "kept"),
    [
        (Entry(b"f", F, 3, 0o7777, 5, 6, 7), Rules(umask=0o027), (0o750, None, None)),
        (Entry(b"f", F, 3, 0o7777, 5, 6, 7), KEEP._replace(umask=0o027), (0o7777, 5, (6, 7))),
        (Entry(b"f", F, uid=-1), Rules(), (0o644, None, None)),
        (Entry(b"f", F, mtime_ns=0), KEEP, (0o644, 0, (0, 0))),
        (Entry(b"f", F, mtime_ns=-1), KEEP, (0o644, -1, (0, 0))),
        (Entry(b"f", F, mtime_ns=MAX_TIME_NS), KEEP, (0o644, None, (0, 0))),
        (Entry(b"f", F, mtime_ns=-MAX_TIME_NS), KEEP, (0o644, None, (0, 0))),
        (Entry(b"f", F, mtime_ns=MAX_TIME_NS - 1), KEEP, (0o644, MAX_TIME_NS - 1, (0, 0))),
    ],
)
def test_modes_times_and_owners(entry: Entry, rules: Rules, kept: tuple[Any, ...]) -> None:
    assert EntryPolicy(rules).decide(entry) == AcceptedEntry((), F, entry.size_bytes, *kept)
