"""PullImage through a proxy in front of a fake runtime."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import PycrictlError
from pycrictl.proxy import admin
from pycrictl.proxy.pulls.pull_image import PullLimiter
from tests.e2e.node.kubelet import IMAGE
from tests.fakecri import FakeServer, Status
from tests.proxy.program import Program
from tests.proxy.settings import settings_from
from tests.support.limited_pulls import Gate, code_of, pod, prepare, pulls, status
from tests.waiting import wait_until

Start = Callable[..., Program]


def test_the_request_and_the_answer_pass_unchanged(fake: FakeServer, start: Start) -> None:
    def answer(request: Any, context: grpc.ServicerContext) -> bytes:
        context.set_trailing_metadata((("x-trail", "t"), ("x-bin", b"\x00\xff")))
        return b"\x0a\x03abc\x9a\x06\x04more"

    prepare(fake, answer)
    proxy = start("--max-parallel-image-pulls", "1")
    # The last field is unknown to the proxy.
    message = cri_pb2.PullImageRequest(image=cri_pb2.ImageSpec(image="a/b:1")).SerializeToString()
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = proxy.channel.unary_unary(
        IMAGE + "PullImage"
    )
    response, rpc = call.with_call(
        message + b"\x9a\x06\x03new",
        metadata=(("traceparent", "00-1"), ("x-bin", b"\x01")),
        timeout=59,
    )
    assert response == b"\x0a\x03abc\x9a\x06\x04more"
    trailing = dict(rpc.trailing_metadata())
    assert (trailing["x-trail"], trailing["x-bin"]) == ("t", b"\x00\xff")
    (seen,) = pulls(fake)
    assert seen.request.SerializeToString() == message + b"\x9a\x06\x03new"
    assert seen.metadata["traceparent"] == "00-1"
    assert seen.metadata["x-bin"] == b"\x01"
    assert 50 < seen.deadline_s < 60  # gRPC rounds it up


def test_never_more_than_the_limit_and_in_order(fake: FakeServer, start: Start) -> None:
    gate = Gate()
    prepare(fake, gate)
    proxy = start("--max-parallel-image-pulls", "2")
    # gRPC sends calls that waited for the connection in any order.
    grpc.channel_ready_future(proxy.channel).result(60)
    futures = [proxy.kubelet.start_pull(f"a/b:{number}") for number in range(10)]
    wait_until(lambda: len(status(proxy)["waiting"]) == 8)
    assert [entry["place"] for entry in status(proxy)["waiting"]] == list(range(1, 9))
    wait_until(lambda: gate.running == 2)

    def begun(count: int) -> Callable[[], bool]:
        return lambda: len(pulls(fake)) == count

    for count in range(3, 11):  # one ends, and the next one begins
        gate.permit.release()
        wait_until(begun(count))
    gate.open.set()
    assert [future.result(60).image_ref for future in futures] == [
        f"ref of a/b:{number}" for number in range(10)
    ]
    assert gate.peak == 2
    order = [int(call.request.image.image.rpartition(":")[2]) for call in pulls(fake)]
    assert order[2:] == sorted(order[2:])  # the first two began at once


def test_aliases_of_an_image_have_one_slot_and_each_its_own_call(
    fake: FakeServer, start: Start
) -> None:
    gate = Gate()
    prepare(fake, gate)
    proxy = start()
    kubelet = proxy.kubelet
    secret, other = cri_pb2.AuthConfig(password="one"), cri_pb2.AuthConfig(password="two")
    futures = [
        kubelet.start_pull("busybox"),
        kubelet.start_pull("docker.io/library/busybox:latest"),
        kubelet.start_pull("busybox", auth=secret),
        kubelet.start_pull("docker.io/busybox", auth=other),
        kubelet.start_pull("busybox:1"),
    ]
    wait_until(lambda: len(status(proxy)["joined"]) == 3)
    wait_until(lambda: gate.running == 2)
    assert len(pulls(fake)) == 2
    gate.open.set()
    # Each caller gets the response to its own request.
    assert [future.result(60).image_ref for future in futures] == [
        "ref of busybox", "ref of docker.io/library/busybox:latest", "ref of busybox",
        "ref of docker.io/busybox", "ref of busybox:1",
    ]  # fmt: skip
    passwords = [call.request.auth.password for call in pulls(fake)]
    assert sorted(passwords) == ["", "", "", "one", "two"]
    assert "one" not in proxy.log()


@pytest.mark.parametrize(
    "answer", [Status(grpc.StatusCode.UNAVAILABLE, "busy"), b"\xff garbage", RuntimeError("x")]
)
def test_a_runtime_that_cannot_say_whether_an_image_is_present(
    fake: FakeServer, start: Start, answer: Any
) -> None:
    prepare(fake, cri_pb2.PullImageResponse(image_ref="r"), status=answer)
    proxy = start("--max-parallel-image-pulls", "1")
    assert proxy.kubelet.pull("a/b:1", timeout_s=60) == "r"


def test_garbage_is_passed_on_and_frees_the_slot(fake: FakeServer, start: Start) -> None:
    prepare(fake, b"\xff\xff\xff")
    proxy = start("--max-parallel-image-pulls", "1")
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = proxy.channel.unary_unary(
        IMAGE + "PullImage"
    )
    request = cri_pb2.PullImageRequest(image=cri_pb2.ImageSpec(image="a")).SerializeToString()
    assert [call(request, timeout=60) for _ in range(3)] == [b"\xff\xff\xff"] * 3
    assert status(proxy)["slotsTaken"] == 0
    # A malformed request is passed on, and the runtime rejects it.
    with pytest.raises(grpc.RpcError):
        call(b"\xff\xff", timeout=60)


def test_a_waiting_pull_is_given_up(fake: FakeServer, start: Start) -> None:
    gate = Gate()
    prepare(fake, gate)
    proxy = start("--max-parallel-image-pulls", "1")
    first = proxy.kubelet.start_pull("library/a:1", pod("running"))
    wait_until(lambda: gate.running == 1)
    futures: dict[str, Any] = {
        name: proxy.kubelet.start_pull(image, pod(name))
        for name, image in (("w1", "b"), ("w2", "b"), ("w3", "c"), ("w4", "d"))
    }
    wait_until(lambda: len(status(proxy)["waiting"]) == 3 and status(proxy)["joined"])

    def cancel(target: object) -> Any:
        return admin.ask(str(proxy.admin_path), "cancel", timeout_s=30.0, target=target)

    for target in ("running", "library/a:1", "nobody", "", None, 1):
        with pytest.raises(PycrictlError):
            cancel(target)
    image = "docker.io/library/b:latest"
    assert cancel("w1") == {"cancelled": [{"image": image, "pod": "default/w1"}]}
    assert code_of(futures["w1"]) is grpc.StatusCode.ABORTED
    assert "pull-limiter cancel" in futures["w1"].details()
    assert not futures["w2"].done()  # it had joined that pull, and now leads it
    assert cancel("default/w3")["cancelled"][0]["pod"] == "default/w3"
    assert cancel("b:latest") == {"cancelled": [{"image": image, "pod": "default/w2"}]}
    gate.open.set()
    assert first.result(60).image_ref
    assert futures["w4"].result(60).image_ref
    assert [call.request.image.image for call in pulls(fake)] == ["library/a:1", "d"]


def test_a_slow_take_over_does_not_make_a_pull_younger_than_its_lease() -> None:
    """The lease is created right after the pull began; an older one cannot be the pull's."""
    layers = Mock()

    async def run() -> float:
        def write_slowly(_event: object) -> None:
            time.sleep(0.05)

        settings = settings_from("--upstream", "/x", "--max-parallel-image-pulls", "1")
        limiter = PullLimiter(settings, Mock(), Mock(), layers, write_slowly)
        began, lease_s = asyncio.get_running_loop().time(), time.time() + 0.001
        pull: dict[str, Any] = {"is_present": False, "started": began, "asked": began, "pod": None}
        limiter.count("a/b:1", "", **pull)
        return lease_s

    lease_s = asyncio.run(run())
    (call,) = layers.begin.call_args_list
    assert call.args[1].since_s < lease_s
