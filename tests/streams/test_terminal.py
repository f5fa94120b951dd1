"""The terminal of a session."""

from __future__ import annotations

import asyncio
import os
import signal
import termios
import threading
from collections.abc import Iterator

import pytest

from pycrictl.streams.terminal import DetachKeys, Modes, Terminal
from tests.streams.servers import run


@pytest.fixture
def pty() -> Iterator[tuple[int, int]]:
    ours, theirs = os.openpty()
    yield ours, theirs
    for descriptor in (ours, theirs):
        try:
            os.close(descriptor)
        except OSError:
            pass  # the test closed it


@pytest.mark.parametrize(
    ("typed", "sent", "leaves"),
    [
        ([b"ls\r"], b"ls\r", False),
        ([b"a\x10\x11b"], b"a", True),
        ([b"a\x10", b"\x11"], b"a", True),
        ([b"\x10", b"x"], b"\x10x", False),
        ([b"\x10", b"\x10", b"\x11"], b"\x10", True),
        ([b"\x11\x10"], b"\x11", False),
        ([b""], b"", False),
    ],
)
def test_detach_keys(typed: list[bytes], sent: bytes, leaves: bool) -> None:
    keys = DetachKeys()
    answers = [keys.feed(data) for data in typed]
    assert b"".join(data for data, _ in answers) == sent
    assert [is_left for _, is_left in answers] == [False] * (len(typed) - 1) + [leaves]


def test_a_raw_terminal_is_restored_whatever_happens(pty: tuple[int, int]) -> None:
    before = termios.tcgetattr(pty[1])

    def fail() -> None:
        with Terminal(pty[1]) as terminal:
            terminal.make_raw()
            local_modes = termios.tcgetattr(pty[1])[3]
            assert not local_modes & (termios.ECHO | termios.ICANON | termios.ISIG)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert termios.tcgetattr(pty[1]) == before


def test_a_terminal_that_is_gone(pty: tuple[int, int]) -> None:
    with Terminal(pty[1]) as terminal:
        os.close(pty[1])
        assert terminal.size() == (0, 0)


def test_what_a_killed_program_switched_is_switched_back(pty: tuple[int, int]) -> None:
    with Terminal(pty[1], screen=pty[1]) as terminal:
        terminal.showed(b"\x1b[?1049h")
    assert os.read(pty[0], 100).startswith(b"\x1b[?1049l")


def test_what_a_file_was_given_is_not_undone_on_the_terminal(pty: tuple[int, int]) -> None:
    with Terminal(pty[1]) as terminal:
        terminal.showed(b"\x1b[?1049h")
    os.write(pty[1], b".")
    assert os.read(pty[0], 100) == b"."  # and nothing before it


def test_the_size_is_told_when_it_changes(pty: tuple[int, int]) -> None:
    terminal = Terminal(pty[1])
    sizes: list[tuple[int, int]] = []
    assert threading.current_thread() is threading.main_thread()

    async def scenario() -> None:
        changed = asyncio.Event()
        with terminal.following(changed.set):
            termios.tcsetwinsize(pty[0], (34, 101))
            signal.raise_signal(signal.SIGWINCH)
            await changed.wait()
            sizes.append(terminal.size())

    run(scenario())
    assert sizes == [(101, 34)]
    assert signal.getsignal(signal.SIGWINCH) == signal.SIG_DFL


# Modes that a program has changed


def undoing(*pieces: bytes) -> bytes:
    modes = Modes()
    for piece in pieces:
        modes.feed(piece)
    return modes.undoing()


PLAIN = b"\x1b>\x1b[m"


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (b"plain \xff \x1b[31mtext", b""),
        (b"\x1b[?1049hscreen", b"\x1b[?1049l" + PLAIN),
        (b"\x1b[?1049hscreen\x1b[?1049l", b""),
        (b"\x1b[?25h", b""),
        (b"\x1b[?7l\x1b[?2004h", b"\x1b[?7h\x1b[?2004l" + PLAIN),
        (b"\x1b[?1000;1006h\x1b[?1000l", b"\x1b[?1006l" + PLAIN),
        (b"\x1b[?;25;l", b"\x1b[?25h" + PLAIN),
        (b"\x1b[?12h\x1b[?40h", b""),
    ],
)
def test_only_what_is_switched_is_undone(shown: bytes, expected: bytes) -> None:
    assert undoing(shown) == expected
    assert undoing(*(bytes([byte]) for byte in shown)) == expected
