"""The poller in front of CRI-O, whose pulls are files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from pycrictl.progress.pull_names import Expected
from pycrictl.progress.registry.requests import Credentials
from pycrictl.proxy.pulls.layer_poller import LayerPoller
from pycrictl.pulls.model import Phase, PullItem
from pycrictl.servicelog import Log
from tests.fakeregistry import fake_registry
from tests.progress.crio.fakecrio import FakeCrio, fake_crio
from tests.waiting import until

IMAGE = "a.io/b:1"
A, B = (f"sha256:{letter * 64}" for letter in "ab")


def items_of(poller: LayerPoller) -> tuple[PullItem, ...]:
    seen = poller.seen(IMAGE)
    return () if seen is None else seen.items


@pytest.fixture
def crio() -> Iterator[FakeCrio]:
    with fake_crio() as crio:
        yield crio


def numbers(poller: LayerPoller) -> tuple[int, int] | None:
    totals = poller.totals(1)
    return None if totals is None else (totals.progress, totals.total)


def test_a_pull_has_its_bytes_and_nothing_after_it(crio: FakeCrio) -> None:
    async def main() -> None:
        log = Log("pycrictl.proxy.test")
        poller = LayerPoller(crio.path, log=log, on_look=lambda: None, wants_manifests=False)
        began_s = time.time() - 1.0
        try:
            poller.begin(1, Expected(IMAGE, time.time()))
            pull = crio.pull()
            pull.write(1, 7, closed=True)
            pull.write(2, 3)
            async with poller.watching():
                await until(lambda: numbers(poller) == (10, 0))
                pull.write(2, 9, closed=True)
                crio.commit(A, 7, created_s=began_s - 1.0)
                crio.commit(B, 9, created_s=time.time())
                crio.commit_image("c" * 64, IMAGE)
                pull.end()
                await until(lambda: {i.phase for i in items_of(poller)} == {Phase.DONE})
            assert [(item.layer, item.digest) for item in items_of(poller)] == [
                ("layer 1", A), ("layer 2", B),
            ]  # fmt: skip
            assert await poller.ended(IMAGE, began_s) is None
        finally:
            await poller.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_the_credentials_go_along(crio: FakeCrio) -> None:
    async def main() -> None:
        poller = LayerPoller(crio.path, log=Log("pycrictl.proxy.test"), on_look=lambda: None)
        with fake_registry() as registry:
            registry.challenge, registry.wanted = 'Basic realm="r"', "Basic bWU6c2VjcmV0"
            image = f"{registry.host}/b:1"
            try:
                poller.begin(1, Expected(image, time.time(), Credentials("me", "secret")))
                async with poller.watching():
                    crio.pull().write(1, 7)
                    await until(lambda: numbers(poller) == (7, 1000))
            finally:
                await poller.close()

    asyncio.run(asyncio.wait_for(main(), 60))
