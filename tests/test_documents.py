"""The pages for developers name only what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    named = set(re.findall(r"`([\w./-]+(?:\.py|\.md|\.proto|/))`", text))
    named.update(re.findall(r"\btests/[\w/]+\.py", text))  # in commands
    assert named
    missing = [name for name in sorted(named) if not _exists(name)]
    assert not missing, f"{page} names {missing}"


def test_the_table_of_tasks_names_what_its_files_have() -> None:
    """Names in brackets after a file, such as `copy/service/slots.py` (`SLOWEST_BYTES_PER_S`)."""
    page = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    pairs = [
        (file, name)
        for file, brackets in re.findall(r"`([\w/]+\.py)` \(([^()]*(?:\(\)[^()]*)*)\)", page)
        for name in re.findall(r"`(\w+)`", brackets)
        if (ROOT / "pycrictl" / file).exists()
    ]
    assert len(pairs) > 50
    missing = [
        (file, name)
        for file, name in pairs
        if name not in re.findall(r"\w+", (ROOT / "pycrictl" / file).read_text("utf-8"))
    ]
    assert missing == []


@pytest.mark.parametrize("page", [*PAGES, "README.md"])
def test_lines_of_prose_fit_a_terminal(page: str) -> None:
    lines = (ROOT / page).read_text("utf-8").splitlines()
    wide = [line for line in lines if len(line) > 120 and not line.startswith("|")]
    assert not wide


def test_the_readme_is_read_in_one_go() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 200


def _exists(name: str) -> bool:
    """Return whether a path exists, below the tree's root, the package, or any of its packages."""
    bare = name.rstrip("/")
    if any((place / bare).exists() for place in (ROOT, ROOT / "pycrictl")):
        return True
    return any((ROOT / "pycrictl").rglob(bare))


def test_the_map_names_every_module_of_some_size() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    large = [
        str(path.relative_to(ROOT / "pycrictl"))
        for path in (ROOT / "pycrictl").rglob("*.py")
        if "_proto" not in path.parts and len(path.read_text("utf-8").splitlines()) > 150
    ]
    assert len(large) > 100
    assert [name for name in large if f"`{name}`" not in page] == []
