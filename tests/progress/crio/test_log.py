"""CRI-O's log, as it was recorded from CRI-O 1.37."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from pycrictl.progress.crio.log import CrioLogFile, Journal, LoggedPulls, open_log

RECORDED = (Path(__file__).parent / "data" / "crio-pull.log").read_bytes()


def test_a_recorded_pull() -> None:
    pulls = LoggedPulls()
    end = RECORDED.index(b"Pulled image")
    for place in range(0, end, 1000):  # wherever a read ends
        pulls.feed(RECORDED[place : min(place + 1000, end)])
    (pull,) = pulls.running()
    assert pull.reference == "127.0.0.1:5001/big:1"
    assert pull.started_s == pytest.approx(1795210574.876)
    pulls.feed(RECORDED[end:])
    assert pull.has_ended
    assert not pulls.running()


def test_the_same_as_json() -> None:
    pulls = LoggedPulls()
    name = "763c55fc-a0e6-4593-97e5-a0f4a387f164"
    line = {"id": name, "level": "info", "msg": "Pulling image: a.io/b:1"}
    line["time"] = "2026-11-20T21:36:14.876428135Z"
    pulls.feed(f"{json.dumps(line, separators=(',', ':'))}\n".encode())
    (pull,) = pulls.running()
    assert pull.reference == "a.io/b:1"


def test_what_is_no_event_is_left_out() -> None:
    pulls = LoggedPulls()
    pulls.feed(
        b'time="x" level=info msg="Pulling image: a" name=/runtime\n'
        b'time="never" msg="Pulling image: a.io/b" id=763c55fc-a0e6-4593-97e5-a0f4a387f164\n'
        b'msg="Pulled image: a.io/b" id=763c55fc-a0e6-4593-97e5-a0f4a387f164\n'
        b"\xff\xfeImagePull (\n" + b"x" * 100_000
    )
    assert not pulls.running()


def test_a_file_is_followed_over_rotation_and_truncation(tmp_path: Path) -> None:
    path = tmp_path / "crio.log"
    log = CrioLogFile(str(path))
    assert log.read() == b""
    path.write_bytes(b"one\n")
    assert (log.read(), log.read()) == (b"one\n", b"")
    with path.open("ab") as file:
        file.write(b"two\n")
    assert log.read() == b"two\n"
    path.write_bytes(b"3\n")
    assert log.read() == b"3\n"
    path.rename(tmp_path / "crio.log.1")
    path.write_bytes(b"four\n")
    assert log.read() == b"four\n"


def test_of_a_long_log_only_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "crio.log"
    path.write_bytes(b"x" * 3_000_000 + b"end")
    data = CrioLogFile(str(path)).read()
    assert len(data) == 2**20
    assert data.endswith(b"end")


def test_the_journal_is_read_as_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "journalctl"
    program.write_text('#!/bin/sh\necho "$@"\nexec sleep 1000\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    journal = Journal(123)
    found = b""
    while b"\n" not in found:
        time.sleep(0.02)
        found += journal.read()
    assert found == b"--quiet --follow --output=cat --lines=2000 _PID=123\n"
    process = journal._process
    began = time.monotonic()
    assert journal.read() == b""
    assert time.monotonic() - began < 60  # of the 1000 s of silence
    del journal
    assert process is not None
    assert process.returncode is not None  # it ends with its reader


def test_without_journalctl_there_is_no_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Journal(1).read() == b""


def test_a_log_is_found_where_the_process_writes_it(tmp_path: Path) -> None:
    named = open_log(os.getpid(), "", str(tmp_path / "a.log"))
    (tmp_path / "a.log").write_bytes(b"a")
    assert isinstance(named, CrioLogFile)
    assert named.read() == b"a"
    with (tmp_path / "err").open("wb") as file:
        saved = os.dup(2)
        sys.stderr.flush()
        os.dup2(file.fileno(), 2)
        try:
            found = open_log(os.getpid(), "", "")
        finally:
            os.dup2(saved, 2)
            os.close(saved)
    (tmp_path / "err").write_bytes(b"b")
    assert isinstance(found, CrioLogFile)
    assert found.read() == b"b"
