"""The live screen with textual's pilot; tests/e2e/node/test_top.py presses every key."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from textual.events import Key
from textual.pilot import Pilot
from textual.widgets import Static

from pycrictl.cli.top.board import Board, BoardRow, State, Usage, ordered
from pycrictl.cli.top.screen import Rows, TopApp
from tests.support.boards import BOARD, NOW


class Node:
    """A node whose board a test may change."""

    def __init__(self, board: Board = BOARD) -> None:
        self.board = board

    def app(self) -> TopApp:
        return TopApp(lambda: self.board, lambda _: ["/no/such/program"], ["why"], 0.05)


def play(
    node: Node, act: Callable[[Pilot[None]], Awaitable[None]], size: tuple[int, int] = (80, 24)
) -> None:
    async def run() -> None:
        async with node.app().run_test(size=size) as pilot:
            await until(pilot, lambda: bool(rows(pilot)))
            await act(pilot)

    asyncio.run(run())


def played(act: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Make a test out of a function that acts on the screen of a node."""

    def run(**given: Any) -> None:
        play(Node(), lambda pilot: act(pilot, **given))

    _, *others = inspect.signature(act).parameters.values()
    run.__signature__ = inspect.Signature(others)  # type: ignore[attr-defined]  # for pytest
    return run


async def until(pilot: Pilot[None], holds: Callable[[], bool]) -> None:
    for _ in range(500):
        if holds():
            return
        await pilot.pause(0.02)
    raise AssertionError("it never came to that")


def rows(pilot: Pilot[None]) -> list[str]:
    found = pilot.app.screen_stack[0].query_one(Rows)
    lines = [found.render_line(y).text.rstrip() for y in range(found.size.height)]
    return [line for line in lines if line]


def chosen_row(pilot: Pilot[None]) -> str:
    """Return the pod and the container of the chosen row."""
    option = pilot.app.query_one(Rows).highlighted_option
    assert option is not None
    return " ".join(str(option.prompt).split()[:2])


def shown(pilot: Pilot[None], name: str) -> str:
    return str(pilot.app.screen_stack[0].query_one(name, Static).content)


@played
async def test_what_is_sick_is_first_and_chosen(pilot: Pilot[None]) -> None:
    assert rows(pilot)[0].startswith("! shop/api")
    lines = [pilot.app.query_one(Rows).render_line(y) for y in (0, 1)]
    reversed_ = [[part.style.reverse for part in line if part.style] for line in lines]
    assert all(reversed_[0])
    assert not any(reversed_[1])
    assert "limit 3: 3/3 taken" in shown(pilot, "#head")
    assert shown(pilot, "#keys").startswith("? help  q quit")


def test_a_pull_without_a_known_pod_is_not_explained() -> None:
    async def act(pilot: Pilot[None]) -> None:
        await pilot.press("w")
        assert shown(pilot, "#keys") == "the pod of this row is not known"

    play(Node(replace(BOARD, rows=(replace(BOARD.rows[0], pod=""),))), act)


@played
async def test_keys_typed_at_once_arrive_in_their_order(pilot: Pilot[None]) -> None:
    for key in ("slash", *"bag", "backspace", *"tck", "backspace", "h", "enter", "s"):
        pilot.app.post_message(Key(key, key if len(key) == 1 else None))
    await until(pilot, lambda: shown(pilot, "#keys") == "sorted by memory")
    assert rows(pilot)[0].startswith("  shop/batch")


def test_a_runtime_that_goes_away_and_comes_back() -> None:
    node = Node()

    async def act(pilot: Pilot[None]) -> None:
        before = rows(pilot)
        node.board = replace(BOARD, problem="the runtime hangs", since_s=NOW)
        await until(pilot, lambda: "the runtime hangs" in shown(pilot, "#head"))
        assert rows(pilot) == before
        node.board = BOARD
        await until(pilot, lambda: "the runtime hangs" not in shown(pilot, "#head"))

    play(node, act)


def many() -> Board:
    made = [
        BoardRow(
            f"ns/pod-{n // 3:03}",
            f"c{n % 3}",
            f"{n:064x}",
            "x",
            State.RUNNING,
            "running 2 h",
            usage=Usage(n / 1000, n << 20),
        )
        for n in range(330)
    ]
    return replace(BOARD, pods=110, rows=ordered(made))


@pytest.mark.parametrize("size", [(80, 24), (200, 50), (40, 10)])
def test_110_pods_scroll_and_the_chosen_row_stays_chosen(size: tuple[int, int]) -> None:
    node = Node(many())

    async def act(pilot: Pilot[None]) -> None:
        await pilot.press("end")
        await until(pilot, lambda: "ns/pod-000" in rows(pilot)[-1])
        await pilot.press("home", "pagedown", "down")
        chosen = chosen_row(pilot)
        node.board = replace(node.board, rows=ordered(node.board.rows)[3:], problem="newer")
        await until(pilot, lambda: "newer" in shown(pilot, "#head"))
        assert chosen_row(pilot) == chosen

    play(node, act, size)


@played
async def test_after_a_resize_all_fits(pilot: Pilot[None]) -> None:
    await pilot.resize_terminal(40, 12)
    await until(pilot, lambda: all(len(line) <= 40 for line in shown(pilot, "#head").split("\n")))
    assert all(len(line) <= 40 for line in rows(pilot))
