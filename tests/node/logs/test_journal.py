"""The systemd journal as printed by journalctl, and what can go wrong with that."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path

import pytest

from pycrictl.node import journal
from pycrictl.node.journal import JournalLine

# As printed by journalctl of systemd 252.
RECORDED: list[dict[str, object]] = [
    {
        "__REALTIME_TIMESTAMP": "1795374000250000",
        "_SYSTEMD_UNIT": "kubelet.service",
        "__CURSOR": "s=1",
        "MESSAGE": 'E1122 19:00:00.250 log.go:32] "PullImage from image service failed"',
        "_BOOT_ID": "b",
        "__MONOTONIC_TIMESTAMP": "1",
    },
    {
        "__REALTIME_TIMESTAMP": "1795374001000000",
        "SYSLOG_IDENTIFIER": "containerd",
        "MESSAGE": [111, 107, 255],
    },
]


@pytest.fixture
def journalctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for journalctl that comes first in PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    program = folder / "journalctl"
    program.touch(0o755)
    return program


read = partial(journal.read, timeout_s=60)
"""As the program reads it, but with a timeout long enough for a busy machine."""


def lines_of(*objects: object) -> str:
    return "".join(f"{json.dumps(entry)}\n" for entry in objects)


def test_lines(journalctl: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text(lines_of(*RECORDED))
    journalctl.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\ncat {tmp_path}/out\n')
    assert read(1795373999.6, units=("kubelet", "containerd")) == [
        JournalLine(1795374000.25, "kubelet", str(RECORDED[0]["MESSAGE"])),
        JournalLine(1795374001.0, "containerd", "ok\ufffd"),
    ]
    words = (tmp_path / "words").read_text().split()
    assert {
        "--output=json",
        "--since=@1795374000",
        f"--lines={journal.MAX_LINES}",
        "--unit=kubelet",
    } <= set(words)


def test_the_journal_of_a_node_below_a_folder(journalctl: Path, tmp_path: Path) -> None:
    journalctl.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\n')
    (tmp_path / "host/var/log/journal").mkdir(parents=True)
    assert read(0, root=tmp_path / "host") == []
    assert f"--directory={tmp_path}/host/var/log/journal" in (tmp_path / "words").read_text()


@pytest.mark.parametrize("line", ["", "{", "[]", "{}", '{"MESSAGE": null}', "7" * 5000, "[" * 9999])
def test_what_is_no_line(line: str) -> None:
    assert list(journal.parse([line.encode()])) == []


def test_no_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert journal.read(0) == []


def test_a_slow_journal(journalctl: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text(lines_of(RECORDED[0]))
    journalctl.write_text(f"#!/bin/sh\ncat {tmp_path}/out\nprintf half\nexec sleep 60\n")
    began_at = time.monotonic()
    assert len(journal.read(0, timeout_s=1)) == 1
    assert time.monotonic() - began_at < 30
