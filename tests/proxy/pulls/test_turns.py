"""Those who ask at the same time go on in the order in which they came."""

from __future__ import annotations

import asyncio

import pytest

from pycrictl.proxy.pulls.turns import Turns


def test_the_order_is_that_of_arrival_whoever_is_answered_first() -> None:
    async def main() -> list[int]:
        turns = Turns()
        answers = [asyncio.get_running_loop().create_future() for _ in range(4)]
        order: list[int] = []

        async def ask(number: int) -> int:
            await answers[number]
            return number

        async def come(number: int) -> None:
            order.append(await turns.take(ask(number)))

        tasks = [asyncio.create_task(come(number)) for number in range(4)]
        await asyncio.sleep(0)
        for number in (3, 1, 2):
            answers[number].set_result(None)
            await asyncio.sleep(0)
        assert order == []
        answers[0].set_result(None)
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(main()) == [0, 1, 2, 3]


def test_who_gives_up_or_fails_keeps_nobody_waiting_but_those_before_do() -> None:
    async def main() -> None:
        turns = Turns()
        first, never = (asyncio.get_running_loop().create_future() for _ in range(2))

        async def ask(answer: asyncio.Future[str]) -> str:
            return await answer

        async def fail() -> str:
            raise ConnectionError

        async def now() -> str:
            return "now"

        works = (ask(first), ask(never), fail(), now())
        one, gone, failed, last = (asyncio.create_task(turns.take(work)) for work in works)
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        with pytest.raises(ConnectionError):
            await failed
        assert not last.done()
        first.set_result("first")
        assert (await one, await last) == ("first", "now")
        assert await turns.take(now()) == "now"

    asyncio.run(asyncio.wait_for(main(), 60))
