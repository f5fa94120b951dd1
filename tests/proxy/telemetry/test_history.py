"""Records of the calls of a whole proxy, and the files that keep them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.base import limits
from pycrictl.proxy.pulls.pull_calls import CallOutcome, CallState, Policy, PullCall, PullKey
from pycrictl.proxy.pulls.queue import PullQueue
from pycrictl.proxy.runtime_lookup import PodKey
from pycrictl.proxy.telemetry.history_file import FILE_BYTES, KEPT, NAME, append, newest
from tests.fakecri import FakeServer, Status
from tests.proxy.program import Program
from tests.proxy.telemetry.records import record
from tests.support.limited_pulls import ABSENT, PRESENT, pod, prepare
from tests.waiting import wait_until

WEB, DB = PodKey("default", "web", "1"), PodKey("default", "db", "2")
A = PullKey("docker.io/a/b:1")

Start = Callable[..., Program]


def images(folder: Path) -> list[str]:
    return [kept["image"] for kept in newest(folder)]


def ended(queue: PullQueue) -> PullCall:
    return queue.book.ended[-1]


def test_a_caller_that_waits_for_an_equal_pull_is_pulled_after_it() -> None:
    queue = PullQueue(1)
    queue.submit(1, A, now=0, pod=WEB)
    queue.submit(2, A, now=3, pod=DB)
    queue.submit(3, A, now=4)
    queue.end(3, CallState.LEFT, now=5)
    call = ended(queue)
    assert (call.outcome, call.waited_s, call.pulled_s) == (CallOutcome.GONE, 1.0, 0.0)
    queue.end(1, CallState.DONE, now=10)
    queue.end(2, CallState.DONE, now=11)
    call = ended(queue)
    assert (call.is_joined, call.waited_s, call.pulled_s) == (True, 7.0, 1.0)
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
    assert ended(queue).outcome is CallOutcome.REFUSED
    queue.end(2, CallState.LEFT, now=3)
    call = ended(queue)
    assert (call.outcome, call.pulled_s) == (CallOutcome.GONE, 1.0)


def test_what_is_written_is_read_in_order(tmp_path: Path) -> None:
    assert newest(tmp_path) == []
    unknown: dict[str, Any] = dict.fromkeys(("gotBytes", "reusedBytes", "extractedBytes"))
    records = [record(), record(image="a:1", **unknown), record(outcome="failed", cause="é\n")]
    for appended in records:
        append(tmp_path, appended)
    assert newest(tmp_path) == records
    assert newest(tmp_path, kept=2) == records[1:]
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600


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
    assert (tmp_path / NAME).stat().st_size * KEPT <= FILE_BYTES


@pytest.mark.parametrize(
    "torn", [b'{"ended": "2', b"\x00\x00", b"[1]\n", b"\xff\n", b'{"a":' * 9000, b'{"image":"a"}']
)
def test_a_torn_line_costs_nothing_else(tmp_path: Path, torn: bytes) -> None:
    append(tmp_path, record(image="before"))
    with (tmp_path / NAME).open("ab") as file:
        file.write(b"\n" + torn)
    append(tmp_path, record(image="after"))
    assert images(tmp_path) == ["before", "after"]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("")
    (tmp_path / NAME).symlink_to(target)
    with pytest.raises(OSError, match="symbolic"):
        append(tmp_path, record())
    assert target.read_text() == ""


def kept_by(proxy: Program, count: int) -> list[dict[str, Any]]:
    wait_until(lambda: len(newest(proxy.state_path)) >= count)
    return newest(proxy.state_path)


def test_a_pull_is_logged_and_kept(fake: FakeServer, start: Start) -> None:
    prepare(fake, cri_pb2.PullImageResponse(image_ref="sha256:1"))
    proxy = start()
    proxy.kubelet.pull("a/b:1", pod("web"))
    (kept,) = kept_by(proxy, 1)
    assert (kept["image"], kept["pod"], kept["outcome"]) == ("a/b:1", "default/web", "pulled")
    assert (kept["digest"], kept["gotBytes"]) == ("sha256:1", None)
    assert " pull image=a/b:1 pod=default/web outcome=OK waited_s=0." in proxy.log()
    proxy.kill9()
    proxy.start()
    assert newest(proxy.state_path) == [kept]


def test_many_calls_that_pull_nothing_have_a_few_lines_and_all_count(
    fake: FakeServer, start: Start
) -> None:
    fake.offer("ImageStatus", lambda request, _: PRESENT if "there" in str(request) else ABSENT)
    fake.offer(
        "PullImage",
        lambda request, context: (
            cri_pb2.PullImageResponse(image_ref="r")
            if "there" in request.image.image
            else context.abort(grpc.StatusCode.UNKNOWN, "denied")
        ),
    )
    proxy = start()
    calls = [proxy.kubelet.start_pull(f"a/{kind}:1") for kind in ("there", "b") for _ in range(40)]
    for call in calls:
        call.exception(60)
    proxy.terminate()
    assert proxy.wait() == 0
    outcomes = [kept["outcome"] for kept in newest(proxy.state_path)]
    assert [outcomes.count(kind) for kind in ("present", "failed")] == [40, 40]
    for image in ("a/there:1", "a/b:1"):  # a few more if the calls took long
        assert limits.FAULT_LINES <= proxy.log().count(f" pull image={image} ") < 20


def test_a_failure_counts_once_its_attempts_are_over(fake: FakeServer, start: Start) -> None:
    fake.prepare("ImageStatus", ABSENT, repeat=True)
    denied = Status(grpc.StatusCode.UNKNOWN, "denied: https://u:hunter2@host")
    fake.prepare("PullImage", denied, cri_pb2.PullImageResponse(image_ref="r"), denied)
    proxy = start()
    with pytest.raises(grpc.RpcError):
        proxy.kubelet.pull("a/b:1", pod("web"))
    proxy.kubelet.pull("a/b:1", pod("web"))
    with pytest.raises(grpc.RpcError):
        proxy.kubelet.pull("c/d:1", pod("web"))
    first, second = kept_by(proxy, 2)
    assert (first["outcome"], first["attempts"]) == ("pulled", 2)
    assert (second["outcome"], second["image"], second["code"]) == ("failed", "c/d:1", "Unknown")
    assert first["cause"] == second["cause"]
    assert "hunter2" not in second["cause"]
    assert second["cause"].startswith("denied")


def test_a_disk_that_does_not_write_is_reported_once(
    fake: FakeServer, start: Start, folder: Path
) -> None:
    prepare(fake, cri_pb2.PullImageResponse(image_ref="r"))
    (folder / "file").write_text("")
    proxy = start("--state-dir", f"{folder}/file")
    for _ in range(3):
        assert proxy.kubelet.pull("a/b:1")
    wait_until(lambda: proxy.log().count(" pull ") == 3 and " no_history " in proxy.log())
    assert proxy.log().count(" no_history ") == 1
