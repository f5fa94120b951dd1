from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from pycrictl.logs import waiting
from pycrictl.logs.waiting import LogWatch

SOON_S = 30.0
LONG_S = 60.0


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is noticed is not noticed at the end of the wait only."""
    monkeypatch.setattr(waiting, "IDLE_S", LONG_S)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "0.log"
    path.touch()
    return path


def waited_s(watch: LogWatch) -> float:
    start = time.monotonic()
    watch.wait()
    return time.monotonic() - start


def rename(path: Path) -> None:
    path.rename(path.with_name("0.log.1"))


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_text("text"),
        lambda path: path.with_name("other").touch(),
        rename,
    ],
    ids=["write", "create", "rename"],
)
def test_a_change_ends_the_wait(path: Path, change: object) -> None:
    assert callable(change)
    with LogWatch(str(path)) as watch:
        assert watch.has_inotify
        timer = threading.Timer(0.05, change, [path])
        timer.start()
        assert waited_s(watch) < SOON_S
        timer.join()


def test_a_change_before_the_wait_counts(path: Path) -> None:
    with LogWatch(str(path)) as watch:
        path.write_text("text")
        assert waited_s(watch) < SOON_S


def test_many_changes_are_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "IDLE_S", 0.1)
    with LogWatch(str(path)) as watch, path.open("ab", buffering=0) as file:
        for _ in range(1000):
            file.write(b"x")
        watch.wait()
        assert waited_s(watch) > 0.09


def test_the_folder_of_what_a_link_leads_to(tmp_path: Path) -> None:
    folder = tmp_path / "real"
    folder.mkdir()
    real = folder / "real.log"
    real.touch()
    link = tmp_path / "0.log"
    link.symlink_to(real)
    with LogWatch(str(link)) as watch:
        real.write_text("text")
        assert waited_s(watch) < SOON_S


def test_without_inotify(tmp_path: Path) -> None:
    with LogWatch(str(tmp_path / "missing" / "0.log")) as watch:
        assert not watch.has_inotify
        assert 0.2 < waited_s(watch) < SOON_S


def test_output_that_nobody_reads_any_more(path: Path) -> None:
    reader, writer = os.pipe()
    with LogWatch(str(path), reader_fd=writer) as watch:
        timer = threading.Timer(0.05, os.close, [reader])
        timer.start()
        with pytest.raises(BrokenPipeError):
            watch.wait()
        timer.join()
    os.close(writer)


def test_output_into_a_file(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "IDLE_S", 0.1)
    with (tmp_path / "out").open("wb") as file:
        with LogWatch(str(path), reader_fd=file.fileno()) as watch:
            assert 0.09 < waited_s(watch) < SOON_S


def test_waiting_takes_no_processor_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "IDLE_S", 0.3)
    with LogWatch(str(path)) as watch:
        start = time.thread_time()
        assert waited_s(watch) > 0.29
        assert time.thread_time() - start < 0.03
