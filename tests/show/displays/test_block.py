from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from pycrictl.show.displays.block import TerminalBlock
from tests.show.screen import Screen, Terminal

SIZE = (80, 24)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with Terminal(*SIZE) as terminal:
        yield terminal


@pytest.mark.parametrize("rewraps", [True, False])
def test_follows_the_window(terminal: Terminal, rewraps: bool) -> None:
    above = ["$ echo hello", "hello", "$ pull"]
    terminal.stderr.write("".join(f"{line}\n" for line in above))
    block = TerminalBlock(terminal.stderr)
    for columns, rows in [(80, 24), (200, 50), (70, 40), (33, 24), (100, 12), (40, 30), (80, 24)]:
        terminal.resize(columns, rows, rewraps=rewraps)
        for letter in "abcde":
            frame = [f"{number} {letter * (columns - 3)}" for number in range(8)]
            block.draw(frame, size=(columns, rows))
            terminal.visible_lines()
            assert terminal.screen.everything == above + frame
    block.close(["done"])
    terminal.visible_lines()
    assert terminal.screen.everything == [*above, "done"]


def test_a_whole_frame_repairs_what_others_wrote(terminal: Terminal) -> None:
    block = TerminalBlock(terminal.stderr)
    frame = ["one", "two", "total"]
    block.draw(frame, size=SIZE)
    terminal.stderr.write("^C")
    terminal.stderr.flush()
    block.draw(frame, size=SIZE)
    assert terminal.visible_lines() == frame
    terminal.stderr.write("\n")  # of another program: the line above stays, the block moves
    block.draw(frame, size=SIZE)
    assert terminal.visible_lines() == ["one", *frame]
    block.close()


def test_waits_for_a_terminal_that_does_not_block(terminal: Terminal) -> None:
    os.set_blocking(terminal.stderr.fileno(), False)
    frame = [f"{number} {'x' * 900}" for number in range(200)]  # more than any buffer holds
    terminal.screen = Screen(1000, 500)
    block = TerminalBlock(terminal.stderr)
    late = threading.Timer(0.1, terminal.read)
    late.start()
    block.draw(frame, size=(1000, 500))
    os.set_blocking(terminal.stderr.fileno(), True)  # the mark has to wait for the reader too
    terminal.mark_end()
    late.join()
    assert terminal.screen.lines == frame
    block.close()


def test_finishes_a_frame_that_a_signal_interrupted(terminal: Terminal) -> None:
    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    terminal.screen = Screen(1000, 500)
    terminal.stderr.write("$ pull\n")
    block = TerminalBlock(terminal.stderr)

    def draw() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        block.draw([f"{number} {'x' * 900}" for number in range(200)], size=(1000, 500))

    try:
        with pytest.raises(KeyboardInterrupt):
            draw()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    reader = threading.Thread(target=terminal.read)
    reader.start()
    block.close(["interrupted"])
    terminal.mark_end()
    reader.join()
    assert terminal.screen.lines == ["$ pull", "interrupted"]
    assert terminal.screen.cursor == (0, 2)
    assert terminal.screen.is_wrapping


def test_a_terminal_that_went_away_is_no_error() -> None:
    outer, inner = os.openpty()
    with os.fdopen(inner, "w") as stderr:
        block = TerminalBlock(stderr)
        block.draw(["one"], size=SIZE)
        os.close(outer)
        block.draw(["two"], size=SIZE)
        block.print_above("note")
        block.close(["done"])
