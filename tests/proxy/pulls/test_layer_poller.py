"""One poller for all watchers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import grpc
import pytest

from pycrictl.base.servicelog import Log
from pycrictl.proxy.pulls.layer_poller import LayerPoller
from pycrictl.pulls.sources.pull_names import Expected
from pycrictl.pulls.state import LayerState
from tests.fakecri import FakeServer
from tests.runtime.containerd.fakectd import FakeContainerd
from tests.runtime.containerd.made import Made, digest_of
from tests.waiting import until

IMAGE = "host:5000/b:1"


def items_of(poller: LayerPoller) -> tuple[LayerState, ...]:
    return poller.seen(IMAGE).layers


class Bench:
    """A poller, and the number of its polls."""

    def __init__(self, path: str, **limits_s: float) -> None:
        self.polls = 0
        log = Log("pycrictl.proxy.test")
        self.poller = LayerPoller(path, log, self._polled, **limits_s)

    def _polled(self) -> None:
        self.polls += 1


def run(path: str, test: Callable[[Bench], Awaitable[None]], **limits_s: float) -> None:
    async def main() -> None:
        bench = Bench(path, **limits_s)
        try:
            async with asyncio.timeout(60):
                await test(bench)
        finally:
            await bench.poller.close()

    asyncio.run(main())


@pytest.fixture
def containerd(tmp_path: Path) -> Iterator[FakeContainerd]:
    with FakeContainerd(tmp_path) as containerd:
        yield containerd


def path_of(containerd: FakeContainerd) -> str:
    return containerd.endpoint.removeprefix("unix://")


def begin_pull(containerd: FakeContainerd, layer: str = "layer") -> Made:
    """Begin a pull of one layer, with 400 of its 1,000 bytes downloaded."""
    now = time.time()
    made = Made(containerd, "b", [layer])
    made.manifest, made.config = digest_of(f"{layer} manifest"), digest_of(f"{layer} config")
    made.begin(layer, at_s=now)
    made.download(0, 400, at_s=now)
    return made


def test_many_watch_at_the_cost_of_one(containerd: FakeContainerd) -> None:
    async def test(bench: Bench) -> None:
        bench.poller.begin(1, Expected(IMAGE, time.time() - 0.1))
        made = begin_pull(containerd)

        async def watch() -> None:
            async with bench.poller.watching():
                await until(lambda: bool(items_of(bench.poller)))
                await asyncio.sleep(1.0)

        await asyncio.gather(*(watch() for _ in range(20)))
        (item,) = items_of(bench.poller)
        assert (item.name, item.progress, item.total) == (*made.layers, 400, 1000)
        sums = bench.poller.seen(IMAGE).sums
        assert (sums.progress, sums.total) == (400, 1000)
        assert sums.percent
        assert not sums.is_unpacking
        assert containerd.calls["list_leases"] <= bench.polls + 1 < 15

    run(path_of(containerd), test)


def test_the_pulls_of_others_are_known_while_somebody_watches_the_whole_node(
    containerd: FakeContainerd,
) -> None:
    async def test(bench: Bench) -> None:
        begin_pull(containerd)
        async with bench.poller.watching():
            await asyncio.sleep(0.2)
            assert not bench.poller.others()
        async with bench.poller.watching(whole_node=True):
            await until(bench.poller.others)
            ((image, pull),) = bench.poller.others().items()
            assert image.startswith("host/b@sha256:")
            assert [layer.progress for layer in pull.layers] == [400]
            assert pull.is_running
            containerd.leases.clear()
            await until(lambda: not next(iter(bench.poller.others().values())).is_running)
            await until(lambda: not bench.poller.others())

    run(path_of(containerd), test, others_s=1.0)


@pytest.mark.parametrize("is_joined", [False, True])
def test_a_tag_that_was_pushed_anew_after_a_look_that_ended_early(
    containerd: FakeContainerd, is_joined: bool
) -> None:
    async def test(bench: Bench) -> None:
        bench.poller.begin(1, Expected(IMAGE, time.time() - 0.1))
        begin_pull(containerd)
        async with bench.poller.watching():
            await until(lambda: bool(items_of(bench.poller)))
        await asyncio.sleep(0.5)  # a poll may still be running
        containerd.leases.clear()
        containerd.ingests.clear()
        bench.poller.end(1)
        bench.poller.begin(2, Expected(IMAGE, time.time() - 0.1), is_joined=is_joined)
        (moved,) = begin_pull(containerd, "moved").layers
        seen = set[str]()
        async with bench.poller.watching():
            await until(lambda: [item.name for item in items_of(bench.poller)] == [moved])
            for _ in range(5):
                seen |= {item.name for item in items_of(bench.poller)}
                await asyncio.sleep(0.2)
        assert seen == {moved}

    run(path_of(containerd), test, linger_s=0.0)


def test_the_runtime_comes_back(
    containerd: FakeContainerd, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(bench: Bench) -> None:
        containerd.failures["list_leases"] = (grpc.StatusCode.UNAVAILABLE, "gone")
        bench.poller.begin(1, Expected(IMAGE, time.time() - 0.1))
        begin_pull(containerd)
        async with bench.poller.watching():
            await until(lambda: "layers_unknown" in caplog.text)
            assert items_of(bench.poller) == ()
            del containerd.failures["list_leases"]
            await until(lambda: bool(items_of(bench.poller)))

    run(path_of(containerd), test)
    assert caplog.text.count("layers_unknown") == 1


def test_another_runtime_is_asked_once(fake: FakeServer) -> None:
    async def test(bench: Bench) -> None:
        bench.poller.begin(1, Expected(IMAGE, time.time()))
        async with bench.poller.watching():
            assert items_of(bench.poller) == ()
        async with bench.poller.watching():
            pass

    run(fake.path, test, timeout_s=100.0)  # longer than the test may last
