"""The committed files are those that ``make generate`` writes."""

from __future__ import annotations

from pathlib import Path

from tools.generate import ROOT, write


def made(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for pattern in ("man/*.*", "ARCHITECTURE.md")
        for path in folder.glob(pattern)
    }


def test_the_files_are_up_to_date(tmp_path: Path) -> None:
    write(tmp_path)
    found, wanted = made(ROOT), made(tmp_path)
    paths = sorted(found.keys() | wanted.keys())
    stale = [path for path in paths if found.get(path) != wanted.get(path)]
    assert stale == [], "run make generate"


def test_a_file_of_a_command_that_is_gone_goes(tmp_path: Path) -> None:
    kept = tmp_path / "man" / "prose" / "pycrictl-old.md"
    gone = tmp_path / "man" / "pycrictl-old.1"
    kept.parent.mkdir(parents=True)
    for path in (kept, gone):
        path.touch()
    write(tmp_path)
    assert kept.exists()
    assert not gone.exists()
