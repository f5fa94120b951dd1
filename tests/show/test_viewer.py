"""A text in one place of a terminal: what fits, when it is painted, and what is left of it."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from pycrictl.show.render import CLEAR_SCREEN
from pycrictl.show.viewer import Picture, clip
from tests.show.screen import Terminal

TEXT = "HEADER\n" + "".join(f"row {number}\n" for number in range(30))


@pytest.mark.parametrize(
    ("text", "columns", "rows", "lines"),
    [
        ("", 80, 24, []),
        ("a\n", 80, 24, ["a"]),
        ("a", 80, 24, ["a"]),
        ("a\n\nb\n", 80, 24, ["a", "", "b"]),
        ("a\nb\nc\n", 80, 4, ["a", "b", "c"]),
        ("a\nb\nc\n", 80, 3, ["a", "… 2 more"]),
        ("a\nb\nc\n", 80, 2, ["… 3 more"]),
        ("a\nb\nc\n", 80, 1, ["… 3 more"]),
        ("a\nb\nc\n", 3, 3, ["a", "… …"]),
        ("abcdef\n", 6, 24, ["abcdef"]),
        ("abcdef\n", 5, 24, ["abcd…"]),
        ("日本語日本\n", 10, 24, ["日本語日本"]),
        ("日本語日本\n", 9, 24, ["日本語日…"]),
        ("日本語日本\n", 8, 24, ["日本語…"]),
        ("a\tb\n", 20, 24, ["a       b"]),
    ],
)
def test_what_fits(text: str, columns: int, rows: int, lines: list[str]) -> None:
    assert clip(text, columns=columns, rows=rows) == lines


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with Terminal(columns=20, rows=6) as terminal:
        terminal.stderr.write("before\r\n")
        yield terminal


@pytest.fixture
def picture(terminal: Terminal) -> Iterator[Picture]:
    picture = Picture(terminal.stderr, {})
    yield picture
    picture.close()


def sent(terminal: Terminal) -> bytes:
    """What was written since this was asked for the last time."""
    terminal.look()
    found, terminal.sent = terminal.sent, b""
    return found


def test_it_is_painted_when_it_differs(terminal: Terminal, picture: Picture) -> None:
    picture.show(TEXT)
    assert terminal.look() == ["HEADER", "row 0", "row 1", "row 2", "… 27 more"]
    assert terminal.screen.cursor == (0, 0)
    above = terminal.screen.top
    assert sent(terminal).count(CLEAR_SCREEN.encode()) == 1
    picture.show(TEXT)
    picture.show(TEXT.replace("row 29", "out of sight"))
    assert sent(terminal) == b""
    picture.show(TEXT.replace("row 1\n", "1\n"))
    assert CLEAR_SCREEN.encode() not in sent(terminal)
    assert terminal.look() == ["HEADER", "row 0", "1", "row 2", "… 27 more"]
    picture.show("HEADER\n")
    assert terminal.look() == ["HEADER"]
    picture.show("")
    assert terminal.look() == []
    assert terminal.screen.top == above
    assert terminal.screen.everything[0] == "before"


def test_wide_rows_end_at_the_edge(terminal: Terminal, picture: Picture) -> None:
    picture.show("x" * 20 + "\n" + "y" * 21 + "\n" + "日" * 11)
    assert terminal.look() == ["x" * 20, "y" * 19 + "…", "日" * 9 + "…"]
    assert terminal.screen.cut == 0


def test_it_follows_the_size(terminal: Terminal, picture: Picture) -> None:
    picture.show(TEXT)
    terminal.resize(30, 4)
    signal.raise_signal(signal.SIGWINCH)
    picture.pause(0.001)
    assert terminal.look() == ["HEADER", "row 0", "… 29 more"]
    terminal.resize(8, 9)
    signal.raise_signal(signal.SIGWINCH)
    picture.pause(0.001)
    assert terminal.look() == ["HEADER", *(f"row {n}" for n in range(6)), "… 24 mo…"]


def test_it_comes_back_after_a_stop(terminal: Terminal, picture: Picture) -> None:
    picture.show("a\n")
    terminal.stderr.write("$ fg\r\n")
    signal.raise_signal(signal.SIGCONT)
    picture.pause(0.001)
    assert terminal.look() == ["a"]
    assert "$ fg" in terminal.screen.everything


def test_the_end(terminal: Terminal) -> None:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    picture = Picture(terminal.stderr, {})
    picture.show(TEXT)
    terminal.look()
    above = terminal.screen.top
    terminal.stderr.write("^C")
    terminal.stderr.flush()
    picture.close()
    assert terminal.look() == ["HEADER", "row 0", "row 1", "row 2", "… 27 more"]
    assert terminal.screen.cursor == (0, 5)
    assert terminal.screen.is_wrapping
    assert terminal.screen.top == above
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask


def test_nothing_is_left_of_what_was_never_shown(terminal: Terminal) -> None:
    Picture(terminal.stderr, {}).close()
    assert terminal.look() == ["before"]


def test_a_terminal_of_one_row_and_another_encoding() -> None:
    with Terminal(columns=20, rows=1, encoding="iso-8859-1") as terminal:
        picture = Picture(terminal.stderr, {})
        picture.show(TEXT)
        assert terminal.look() == ["? 31 more"]
        picture.close()
