"""The corpus of hostile archives, and the unpacker that all ways of copying share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pycrictl.base.errors import EntryRefused, PycrictlError
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules, Skipped
from tests.copy.hostile import HONEST, HOSTILE, Case, build_surroundings, snapshot
from tests.copy.trees import Archive, made_in, put_at


@pytest.fixture
def dest(tmp_path: Path, case: Case) -> Path:
    build_surroundings(tmp_path)
    if case.before:
        case.before(tmp_path / "dest")
    return tmp_path / "dest"


def unpack(
    case: Case, dest: Path, rules: Rules, skipped: list[Skipped], *, step: int = 0
) -> Summary:
    step = step or max(len(case.data), 1)
    pieces = (case.data[start : start + step] for start in range(0, len(case.data), step))
    return put_at(dest, Archive(pieces), rules, on_skip=skipped.append)


@pytest.mark.parametrize("archive", [False, True], ids=["", "keep"])
@pytest.mark.parametrize("case", HOSTILE.values(), ids=HOSTILE.keys())
def test_refused_and_nothing_changed(dest: Path, case: Case, archive: bool) -> None:
    before = snapshot(dest.parent)
    with pytest.raises(PycrictlError) as info:
        unpack(case, dest, Rules(archive=archive), [])
    assert snapshot(dest.parent) == before
    assert case.refused is not None
    rule = info.value.rule if isinstance(info.value, EntryRefused) else ""
    assert case.refused == rule or case.refused in info.value.message, info.value.message
    assert info.value.message.isprintable()


@pytest.mark.parametrize("step", [0, 100], ids=["whole", "pieces"])
@pytest.mark.parametrize("archive", [False, True], ids=["", "keep"])
@pytest.mark.parametrize("case", HONEST.values(), ids=HONEST.keys())
def test_taken_whole(dest: Path, case: Case, archive: bool, step: int) -> None:
    before = snapshot(dest.parent, but=["dest"])
    skipped: list[Skipped] = []
    unpack(case, dest, Rules(archive=archive), skipped, step=step)
    after = snapshot(dest.parent, but=["dest"])
    if case is HONEST["pre-hardlink"]:
        # The name in ``dest`` was replaced: ``secret`` is now the only name of its file.
        assert before.pop("secret")[4] == 2
        assert after.pop("secret")[4] == 1
        assert (dest.parent / "secret").read_text() == "keep me"
    assert after == before
    assert made_in(dest) == case.made
    assert tuple(entry.path for entry in skipped) == case.skipped
    assert case is not HONEST["xattrs"] or not os.listxattr(dest / "x")
