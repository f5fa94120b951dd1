from __future__ import annotations

from pathlib import Path

import pytest

from pycrictl.runtime.cri.lifecycle.control import remove_logs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    for name in ("0.log", "0.log.20261120-101010", "0.log.1.gz", "0.logs", "1.log", "a0.log"):
        (folder / name).write_text("x")
    return folder


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_log_and_its_rotated_ones_go(folder: Path) -> None:
    assert remove_logs(str(folder / "0.log")) == ()
    assert names(folder) == {"0.logs", "1.log", "a0.log"}


@pytest.mark.parametrize("path", ["", "/nonexistent/x/0.log"])
def test_nothing_there_is_fine(path: str) -> None:
    assert remove_logs(path) == ()


@pytest.mark.parametrize("path", ["0.log", "/", "{}/../logs/0.log", "{}/0.log\0"])
def test_odd_paths_are_left_alone(folder: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    before = names(folder)
    (warning,) = remove_logs(path.format(folder))
    assert "left alone" in warning
    assert names(folder) == before


def test_patterns_in_the_path_mean_nothing(folder: Path) -> None:
    (folder / "*.log").write_text("x")
    before = names(folder)
    assert remove_logs(str(folder / "*.log")) == ()
    assert names(folder) == before - {"*.log"}


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("x")
    (folder / "0.log").unlink()
    (folder / "0.log").symlink_to(victim)
    (folder / "0.log.dir").mkdir()
    assert remove_logs(str(folder / "0.log")) == ()
    assert names(folder) == {"0.log.dir", "0.logs", "1.log", "a0.log"}
    assert victim.exists()


def test_a_linked_folder_is_left_alone(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder)
    before = names(folder)
    (warning,) = remove_logs(str(link / "0.log"))
    assert "could not be deleted" in warning
    assert names(folder) == before


def test_control_characters_do_not_reach_the_message(tmp_path: Path) -> None:
    file = tmp_path / "\x1b[2J"
    file.write_text("")
    (warning,) = remove_logs(str(file / "0.log"))
    assert warning.isprintable()
