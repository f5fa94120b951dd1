"""``cp`` where its standard streams are closed, or others have made them non-blocking."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.copy.test_on_node import ID
from tests.copy.trees import needs_root
from tests.fakecri.server import FakeServer
from tests.proxy.copier import ARCHIVE, pretended

pytestmark = needs_root


@pytest.fixture
def root(fake: FakeServer, tmp_path: Path) -> Iterator[Path]:
    with pretended(fake, tmp_path / "root"):
        yield tmp_path / "root"


def command(fake: FakeServer, *words: str) -> list[str]:
    program = [sys.executable, "-m", "pycrictl", "-t", "30s", "-r", fake.endpoint]
    return [*program, "cp", "--quiet", "--method", "node", *words]


def run(fake: FakeServer, redirection: str, *words: str) -> list[str]:
    """Copy with a stream as the shell makes it, and return the lines of stderr."""
    ended = subprocess.run(
        ["sh", "-c", f'"$@" {redirection}', "sh", *command(fake, *words)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    return ended.stderr.splitlines()


def test_streams_that_cannot_be_used(fake: FakeServer, root: Path) -> None:
    closed_or_wrong = {"reading": ("<&-", "0>/dev/null"), "writing": (">&-", "1</dev/null")}
    for purpose, redirections in closed_or_wrong.items():
        name, words = "standard output", [f"{ID}:/to", "-"]
        if purpose == "reading":
            name, words = "standard input", ["-", f"{ID}:/to"]
        for redirection in redirections:
            assert run(fake, redirection, *words) == [
                f"pycrictl: {name} is not open for {purpose}",
                "hint: an archive needs it",
            ]
    assert list((root / "to").iterdir()) == []


def test_input_that_does_not_block(fake: FakeServer, root: Path) -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with start(command(fake, "-", f"{ID}:/to"), stdin=reader) as process:
        for piece in (ARCHIVE[:700], ARCHIVE[700:]):
            time.sleep(0.3)
            os.write(writer, piece)
        os.close(writer)
        _, reported = process.communicate(timeout=60)
    assert (process.returncode, reported) == (0, b"")
    assert not os.get_blocking(reader)
    os.close(reader)
    assert (root / "to/f").read_text() == "content"


def test_output_that_does_not_block(fake: FakeServer, root: Path) -> None:
    data = os.urandom(3_000_000)
    (root / "to/f").write_bytes(data)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    received = bytearray()

    def read() -> None:
        time.sleep(0.5)
        while piece := os.read(reader, 65536):
            received.extend(piece)

    thread = threading.Thread(target=read)
    with start(command(fake, f"{ID}:/to/f", "-"), stdout=writer) as process:
        os.close(writer)
        thread.start()
        _, reported = process.communicate(timeout=60)
    thread.join()
    os.close(reader)
    assert (process.returncode, reported) == (0, b"")
    assert data in received


def test_progress_goes_where_the_archive_does_not(fake: FakeServer, root: Path) -> None:
    (root / "to/f").write_text("content")
    shown = copy(fake, "json", f"{ID}:/to/f", str(root / "g"))
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert json.loads(shown.stdout.splitlines()[-1])["files"] == 1
    os.mkfifo(root / "to/pipe")
    shown = copy(fake, "json", f"{ID}:/to", "-")
    left_out, copied = map(json.loads, shown.stderr.splitlines())
    assert left_out["skipped"] == "to/pipe"
    numbers = [copied[key] for key in ("files", "directories", "links", "size_bytes", "skipped")]
    assert numbers == [1, 1, 0, 7, 1]
    assert copied["elapsed_s"] > 0
    with tarfile.open(fileobj=io.BytesIO(shown.stdout)) as archive:
        assert sorted(archive.getnames()) == ["to", "to/f"]


def test_nothing_is_written_of_more_than_is_allowed(fake: FakeServer, root: Path) -> None:
    (root / "to/f").write_text("content")
    shown = copy(fake, "auto", "--max-size", "6", f"{ID}:/to/f", "-")
    assert (shown.returncode, shown.stdout) == (1, b"")
    assert shown.stderr == b'pycrictl: refused to copy "f": more than 6 bytes would be copied\n'
    assert copy(fake, "auto", "--max-size", "7", f"{ID}:/to/f", "-").returncode == 0


def test_progress_without_a_terminal(fake: FakeServer, root: Path) -> None:
    (root / "to/f").write_text("content")
    note = b"pycrictl: no bars: standard error is not a terminal that can show them"
    for mode, notes in (("auto", []), ("none", []), ("plain", []), ("bar", [note])):
        shown = copy(fake, mode, f"{ID}:/to/f", str(root / "g"))
        assert (shown.returncode, shown.stdout) == (0, b"")
        *first, last = shown.stderr.splitlines()
        assert (first, last.startswith(b"copied 1 file (7 B) in ")) == (notes, True)


def test_a_copy_goes_on_when_nobody_reads_its_progress(fake: FakeServer, root: Path) -> None:
    (root / "to/f").write_text("content")
    reader, writer = os.pipe()
    os.close(reader)
    shown = copy(fake, "json", f"{ID}:/to/f", str(root / "g"), stdout=writer)
    os.close(writer)
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert (root / "g").read_text() == "content"


def copy(
    fake: FakeServer, mode: str, *words: str, stdout: int = subprocess.PIPE
) -> subprocess.CompletedProcess[bytes]:
    loud = [word for word in command(fake, "--progress", mode, *words) if word != "--quiet"]
    return subprocess.run(loud, stdout=stdout, stderr=subprocess.PIPE, check=False)


def start(words: list[str], **streams: Any) -> subprocess.Popen[bytes]:
    others: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL} | streams
    return subprocess.Popen(words, stderr=subprocess.PIPE, **others)


def test_a_quiet_copy_says_that_something_was_left_out(
    fake: FakeServer, root: Path, tmp_path: Path
) -> None:
    hint = "hint: without --quiet, each is named"
    for name, count in (("a", "1 entry"), ("b", "2 entries")):
        os.mkfifo(root / "to" / name)
        said = run(fake, "", f"{ID}:/to/.", str(tmp_path / name))
        assert said == [f"pycrictl: left out {count}", hint]
        assert (tmp_path / name).is_dir()
