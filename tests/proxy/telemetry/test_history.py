from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from pycrictl.proxy.pulls.pull_calls import CallState, Policy, PullKey
from pycrictl.proxy.pulls.queue import PullQueue
from pycrictl.proxy.runtime_lookup import PodKey
from pycrictl.proxy.telemetry import history
from pycrictl.proxy.telemetry.history import CallOutcome, PullRecord, append, newest
from tests.proxy.telemetry.records import record

WEB, DB = PodKey("default", "web", "1"), PodKey("default", "db", "2")
A = PullKey("docker.io/a/b:1")


def images(folder: Path) -> list[str]:
    return [kept["image"] for kept in newest(folder)]


def ended(queue: PullQueue, code: str = "OK") -> PullRecord:
    call = queue.book.ended[-1]
    call.code = code
    return PullRecord.of(call)


def test_a_caller_that_waits_for_an_equal_pull_is_pulled_after_it() -> None:
    queue = PullQueue(1)
    queue.submit(1, A, now=0, pod=WEB)
    queue.submit(2, A, now=3, pod=DB)
    queue.submit(3, A, now=4)
    queue.end(3, CallState.LEFT, now=5)
    found = ended(queue, "")
    assert (found.outcome, found.waited_s, found.pulled_s) == (CallOutcome.GONE, 1.0, 0.0)
    queue.end(1, CallState.DONE, now=10)
    queue.end(2, CallState.DONE, now=11)
    found = ended(queue)
    assert (found.is_joined, found.waited_s, found.pulled_s) == (True, 7.0, 1.0)
    queue.submit(4, A, now=20)
    queue.submit(5, A, now=21)
    queue.end(4, CallState.FAILED, now=22, error="denied")
    queue.end(5, CallState.DONE, now=23)
    assert not ended(queue).is_joined  # it pulled on its own after the failure


def test_present_gone_and_refused() -> None:
    queue = PullQueue(1, Policy.RETRY, retries=0)
    queue.submit(1, A, now=0, is_present=True)
    queue.end(1, CallState.DONE, now=1)
    assert ended(queue).outcome is CallOutcome.PRESENT
    queue.submit(2, A, now=2)
    queue.submit(3, PullKey("c"), now=2)
    assert ended(queue, "ResourceExhausted").outcome is CallOutcome.REFUSED
    queue.end(2, CallState.LEFT, now=3)
    found = ended(queue, "")
    assert (found.outcome, found.pulled_s) == (CallOutcome.GONE, 1.0)


def test_what_is_written_is_read_in_order(tmp_path: Path) -> None:
    assert newest(tmp_path) == []
    unknown: dict[str, Any] = dict.fromkeys(
        ("got_bytes", "reused_bytes", "extracted_bytes", "size_bytes")
    )
    empty = dict.fromkeys(("code", "pod", "digest"), "")
    failed = record(image="a:2", outcome=CallOutcome.FAILED, cause="é\n", **empty)
    records = [record(image="a:0"), record(image="a:1", **unknown), failed]
    for appended in records:
        append(tmp_path, appended)
    documents = [appended.document() for appended in records]
    assert newest(tmp_path) == documents
    assert newest(tmp_path, kept=2) == documents[1:]
    assert (tmp_path / history.NAME).stat().st_mode & 0o777 == 0o600


def test_it_is_bounded_and_keeps_enough(tmp_path: Path) -> None:
    for number in range(100):
        append(tmp_path, record(image=f"a:{number}"), file_bytes=5000)
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert max(sizes) < 6000
    kept = images(tmp_path)
    assert kept == [f"a:{number}" for number in range(100)][-len(kept) :]
    assert len(kept) >= 10


def test_as_many_as_are_promised_fit(tmp_path: Path) -> None:
    long = record(image="i" * 150, pod="p" * 60, cause="c" * 300, digest="d" * 71)
    append(tmp_path, long)
    assert (tmp_path / history.NAME).stat().st_size * history.KEPT <= history.FILE_BYTES


@pytest.mark.parametrize(
    "torn", [b'{"ended": "2', b"\x00\x00", b"[1]\n", b"\xff\n", b'{"a":' * 9000, b'{"image":"a"}']
)
def test_a_torn_line_costs_nothing_else(tmp_path: Path, torn: bytes) -> None:
    append(tmp_path, record(image="before"))
    with (tmp_path / history.NAME).open("ab") as file:
        file.write(b"\n" + torn)
    append(tmp_path, record(image="after"))
    assert images(tmp_path) == ["before", "after"]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("")
    (tmp_path / history.NAME).symlink_to(target)
    with pytest.raises(OSError, match="symbolic"):
        append(tmp_path, record())
    assert target.read_text() == ""


def _write(folder: Path, name: str) -> None:
    for number in range(200):
        append(folder, record(image=f"{name}:{number}"), file_bytes=20_000)


def test_two_processes_lose_nothing_of_each_other(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(tmp_path, name)) for name in ("a", "b")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    kept = images(tmp_path)
    for name in ("a", "b"):
        mine = [int(image.partition(":")[2]) for image in kept if image.startswith(name)]
        assert mine == sorted(mine)  # the oldest may be gone
        assert len(mine) == len(set(mine))
    assert len(kept) >= 20_000 // 450
    assert len(list(tmp_path.iterdir())) == 2
