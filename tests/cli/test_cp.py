"""``cp`` against a fake runtime: refusals, reports, and standard streams.

The streams may be closed, or another process may have made them non-blocking.
"""

from __future__ import annotations

import fcntl
import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
import termios
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.copy.rules.outcome import Summary, encode_success
from pycrictl.copy.rules.policy import Skipped
from tests.cli.run import PROGRAM, Run
from tests.copy.transfer.conftest import copy_server
from tests.fakecri import FakeServer, Status
from tests.proxy.copier import ARCHIVE, pretended
from tests.support.containers import ID
from tests.waiting import wait_until


@pytest.fixture
def root(as_root: None, fake: FakeServer, tmp_path: Path) -> Iterator[Path]:
    """The root directory of a pretended container on this machine."""
    with pretended(fake, tmp_path / "root"):
        (tmp_path / "root/to/f").write_text("content")
        yield tmp_path / "root"


def offer(fake: FakeServer, *, runs: bool = True) -> None:
    """Offer a container in the list only, without its status or process."""
    state = cri_pb2.CONTAINER_RUNNING if runs else cri_pb2.CONTAINER_EXITED
    container = cri_pb2.Container(
        id=ID, metadata=cri_pb2.ContainerMetadata(name="web"), state=state
    )
    fake.offer("ListContainers", cri_pb2.ListContainersResponse(containers=[container]))


def run(fake: FakeServer, *words: str) -> Run:
    return Run("-t", "5s", "-r", fake.endpoint, "cp", *words)


def command(fake: FakeServer, *words: str) -> list[str]:
    return [*PROGRAM, "-t", "30s", "-r", fake.endpoint, "cp", "--method", "node", *words]


def copy(fake: FakeServer, *words: str, **streams: Any) -> subprocess.CompletedProcess[bytes]:
    others = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "timeout": 60, **streams}
    return subprocess.run(command(fake, *words), stderr=subprocess.PIPE, check=False, **others)


# Refusals


def test_containers_that_are_not_there(fake: FakeServer) -> None:
    offer(fake, runs=False)
    fake.offer("ListPodSandbox", cri_pb2.ListPodSandboxResponse())
    missing, stopped = (run(fake, f"{name}:/a", "/b") for name in ("nope", "web"))
    assert (missing.code, stopped.code) == (1, 1)
    assert missing.stderr.splitlines() == [
        'pycrictl: no container "nope"',
        "hint: 'pycrictl ps -a' lists the containers of the node",
    ]
    assert stopped.stderr.startswith('pycrictl: container "web" is not running\n')


def test_when_no_method_serves_each_tells_why(fake: FakeServer, tmp_path: Path) -> None:
    offer(fake)
    fake.offer("CopyFromContainer", Status(grpc.StatusCode.UNIMPLEMENTED, "unknown method"))
    # It runs, but the runtime does not report its process.
    status = cri_pb2.ContainerStatus(id=ID, state=cri_pb2.CONTAINER_RUNNING)
    fake.offer("ContainerStatus", cri_pb2.ContainerStatusResponse(status=status))
    result = run(fake, "web:/a", str(tmp_path))
    assert result.code == 1
    line, hint = result.stderr.splitlines()
    assert line.startswith("pycrictl: cannot copy to or from this container (rpc: ")
    assert "; node: " in line
    assert "'pycrictl exec CONTAINER tar -cf - PATH'" in hint
    assert list(tmp_path.iterdir()) == []


def test_a_failure_is_no_reason_to_try_another_method(fake: FakeServer, tmp_path: Path) -> None:
    offer(fake)
    refusal = Status(grpc.StatusCode.RESOURCE_EXHAUSTED, "too large, try again later")
    fake.offer("CopyFromContainer", refusal)
    result = run(fake, "web:/a", str(tmp_path))
    assert result.code == 1
    assert "too large, try again later" in result.stderr
    assert "ContainerStatus" not in fake.methods()


def test_nothing_is_written_of_more_than_is_allowed(fake: FakeServer, root: Path) -> None:
    done = copy(fake, "--max-size", "6", f"{ID}:/to/f", "-")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b'pycrictl: refused to copy "f": more than 6 bytes would be copied\n'
    assert copy(fake, "--max-size", "7", f"{ID}:/to/f", "-").returncode == 0


# Several sources


def test_several_sources_of_containers(fake: FakeServer, root: Path, tmp_path: Path) -> None:
    """What can be copied is; the errors follow, and the status is 1."""
    (root / "to/g").write_text("more")
    target = tmp_path / "new"
    words = [f"{ID}:/to/f", f"{ID}:to/missing", f"{'d' * 64}:/to/g"]
    refused = copy(fake, *words, str(target))
    assert (refused.returncode, refused.stderr.decode()) == (
        1, f'pycrictl: "{target}" is not a directory\n',
    )  # fmt: skip
    target.mkdir()
    done = copy(fake, *words, str(target))
    assert done.returncode == 1
    copied, error = done.stderr.decode().splitlines()
    assert copied.startswith("copied 2 files (11 B) in ")
    assert error == 'pycrictl: cannot copy "/to/missing": no such file or directory'
    assert [(target / name).read_text() for name in ("f", "g")] == ["content", "more"]


def test_several_sources_of_this_machine(fake: FakeServer, root: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    paths = [str(tmp_path / name) for name in ("a", "missing", "b")]
    refused = copy(fake, *paths, f"{ID}:/to/f")
    assert refused.stderr == b'pycrictl: "/to/f" is not a directory\n'
    done = copy(fake, *paths, f"{ID}:to")
    left_out, copied = done.stderr.decode().splitlines()
    assert left_out == f"pycrictl: warning: left out {paths[1]}: no such file or directory"
    assert copied.startswith("copied 2 files (2 B) in ")
    assert done.returncode == 1
    assert {path.name for path in (root / "to").iterdir()} == {"a", "b", "f"}


# Standard streams


def test_an_archive_that_is_compressed(fake: FakeServer, root: Path, tmp_path: Path) -> None:
    def piped(data: bytes, *words: str) -> subprocess.CompletedProcess[bytes]:
        (tmp_path / "in").write_bytes(data)
        with (tmp_path / "in").open("rb") as file:
            return copy(fake, "-", *words, stdin=file)

    (root / "new").mkdir()
    assert piped(gzip.compress(ARCHIVE), f"{ID}:new").returncode == 0
    assert (root / "new/f").read_text() == "content"
    assert piped(b"PK\3\4", f"{ID}:/to").stderr.decode().splitlines() == [
        "pycrictl: the archive has the format zip, which is not supported here",
        "hint: pipe a tar archive, plain or compressed with gzip or bzip2 or xz",
    ]


def test_archives_and_terminals(fake: FakeServer) -> None:
    controller, terminal = os.openpty()
    for words, line in (
        (["web:/a", "-"], b"refusing to write an archive to a terminal"),
        (["-", "web:/a"], b"refusing to read an archive from a terminal"),
    ):
        done = copy(fake, *words, stdin=terminal, stdout=terminal)
        assert (done.returncode, done.stderr.splitlines()[0]) == (1, b"pycrictl: " + line)
    assert fake.calls == []
    os.close(controller)
    os.close(terminal)


@pytest.mark.parametrize("redirection", ["<&-", "0>/dev/null", ">&-", "1</dev/null"])
def test_streams_that_cannot_be_used(fake: FakeServer, redirection: str) -> None:
    words, line = ("web:/to", "-"), "standard output is not open for writing"
    if redirection[0] in "<0":
        words, line = ("-", "web:/to"), "standard input is not open for reading"
    shell = ["sh", "-c", f'"$@" {redirection}', "sh", *command(fake, *words)]
    done = subprocess.run(shell, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.returncode == 1
    assert done.stderr.decode() == f"pycrictl: {line}\nhint: an archive needs it\n"
    assert fake.calls == []


PIPE_BYTES = 65536
"""What fits into a pipe, see pipe(7)."""


def unread_bytes(pipe: int) -> int:
    count = fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))
    return int.from_bytes(count, sys.byteorder)


def test_input_that_does_not_block(fake: FakeServer, root: Path) -> None:
    (root / "to/f").unlink()
    reader, writer = os.pipe()
    os.set_blocking(reader, False)

    def write() -> None:
        os.write(writer, ARCHIVE[:700])
        wait_until(lambda: not unread_bytes(writer))  # and then there is nothing to read
        os.write(writer, ARCHIVE[700:])
        os.close(writer)

    with ThreadPoolExecutor() as pool:
        pool.submit(write)
        done = copy(fake, "--quiet", "-", f"{ID}:/to", stdin=reader)
    assert (done.returncode, done.stderr) == (0, b"")
    assert not os.get_blocking(reader)
    os.close(reader)
    assert (root / "to/f").read_text() == "content"


def test_output_that_does_not_block(fake: FakeServer, root: Path) -> None:
    data = os.urandom(3_000_000)
    (root / "to/f").write_bytes(data)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def read() -> bytes:
        wait_until(lambda: unread_bytes(reader) >= PIPE_BYTES)
        with os.fdopen(reader, "rb") as file:
            return file.read()

    with ThreadPoolExecutor() as pool:
        received = pool.submit(read)
        done = copy(fake, "--quiet", f"{ID}:/to/f", "-", stdout=writer)
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
    assert data in received.result()


# Reports


def test_progress_goes_where_the_archive_does_not(fake: FakeServer, root: Path) -> None:
    done = copy(fake, "--progress", "json", f"{ID}:/to/f", str(root / "g"))
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout.splitlines()[-1])["files"] == 1
    os.mkfifo(root / "to/pipe")
    done = copy(fake, "--progress", "json", f"{ID}:/to", "-")
    *records, copied = map(json.loads, done.stderr.splitlines())  # more if it takes a second
    assert "to/pipe" in [record.get("skipped") for record in records]
    numbers = [copied[key] for key in ("files", "directories", "links", "size_bytes", "skipped")]
    assert numbers == [1, 1, 0, 7, 1]
    assert copied["elapsed_s"] > 0
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        assert sorted(archive.getnames()) == ["to", "to/f"]


def test_a_copy_goes_on_when_nobody_reads_its_progress(fake: FakeServer, root: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = copy(fake, "--progress", "json", f"{ID}:/to/f", str(root / "g"), stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (root / "g").read_text() == "content"


def test_a_server_names_only_some_of_what_was_left_out(fake: FakeServer, tmp_path: Path) -> None:
    offer(fake)
    (tmp_path / "f").write_text("content")
    named = [Skipped(b"to/pipe", "special", "it is a named pipe")]
    told = encode_success(Summary(files=1, skipped=150), named)
    with copy_server(fake) as server:
        server.script = partial(server.receive_archive, outcome=told)
        shown = run(fake, "--progress", "json", str(tmp_path / "f"), "web:/to")
        quiet = run(fake, "--quiet", str(tmp_path / "f"), "web:/to")
    assert (shown.code, quiet.code) == (1, 1)
    assert json.loads(shown.stdout.splitlines()[-1])["skipped"] == 150
    assert quiet.stderr.startswith("pycrictl: left out 150 entries\n")


@pytest.mark.parametrize(("pipes", "count"), [("a", "1 entry"), ("ab", "2 entries")])
def test_a_quiet_copy_left_things_out(fake: FakeServer, root: Path, pipes: str, count: str) -> None:
    for name in pipes:
        os.mkfifo(root / "to" / name)
    done = copy(fake, "--quiet", f"{ID}:/to/.", str(root / "new"))
    hint = "hint: without --quiet, each entry is listed\n"
    assert (done.returncode, done.stderr.decode()) == (1, f"pycrictl: left out {count}\n{hint}")
    assert (root / "new").is_dir()
