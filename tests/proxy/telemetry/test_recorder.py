"""Records of the calls of a whole proxy, in its log and in its history."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.base import limits
from pycrictl.proxy.telemetry.history import newest
from tests.fakecri import FakeServer, Status
from tests.proxy.program import Program
from tests.support.limited_pulls import ABSENT, PRESENT, Gate, pod, prepare, status
from tests.waiting import wait_until

Start = Callable[..., Program]


def history(proxy: Program, count: int) -> list[dict[str, Any]]:
    wait_until(lambda: len(newest(proxy.state_path)) >= count)
    return newest(proxy.state_path)


def test_a_pull_is_logged_and_kept(fake: FakeServer, start: Start) -> None:
    image = cri_pb2.Image(id="sha256:1", size=5000)
    fake.prepare("ImageStatus", ABSENT, cri_pb2.ImageStatusResponse(image=image))
    fake.prepare("PullImage", cri_pb2.PullImageResponse(image_ref="sha256:1"))
    proxy = start()
    proxy.kubelet.pull("a/b:1", pod("web"))
    (kept,) = history(proxy, 1)
    assert (kept["image"], kept["pod"], kept["outcome"]) == ("a/b:1", "default/web", "pulled")
    assert (kept["digest"], kept["sizeBytes"], kept["gotBytes"]) == ("sha256:1", 5000, None)
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
    outcomes = [record["outcome"] for record in newest(proxy.state_path)]
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
    first, second = history(proxy, 2)
    assert (first["outcome"], first["attempts"]) == ("pulled", 2)
    assert (second["outcome"], second["image"], second["code"]) == ("failed", "c/d:1", "Unknown")
    assert first["cause"] == second["cause"]
    assert "hunter2" not in second["cause"]
    assert second["cause"].startswith("denied")


def test_what_is_held_back_is_written_at_the_end(fake: FakeServer, start: Start) -> None:
    prepare(fake, Status(grpc.StatusCode.UNKNOWN, "denied"))
    proxy = start()
    with pytest.raises(grpc.RpcError):
        proxy.kubelet.pull("a/b:1", pod("web"))
    proxy.terminate()
    assert proxy.wait() == 0
    assert [record["cause"] for record in newest(proxy.state_path)] == ["denied"]


def test_callers_that_share_a_pull_ask_once_what_it_took(fake: FakeServer, start: Start) -> None:
    gate = Gate()
    prepare(fake, gate)
    proxy = start("--max-parallel-image-pulls", "1")
    futures: list[Any] = [proxy.kubelet.start_pull("a/b:1", pod(f"w{n}")) for n in range(5)]
    wait_until(lambda: len(status(proxy)["joined"]) == 4)
    gate.open.set()
    assert all(future.result(60).image_ref for future in futures)
    assert sorted(record["joined"] for record in history(proxy, 5)) == [
        False,
        True,
        True,
        True,
        True,
    ]
    assert fake.methods().count("ImageStatus") == 5 + 1


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
