"""What a program has switched in a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.streaming.terminal import Modes


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


@given(
    st.lists(st.sampled_from([b"\x1b", b"[", b"?", b"25", b"1049", b";", b"h", b"l", b"m", b"x"])),
    st.integers(0, 200),
)
def test_torn_sequences_are_followed_as_whole_ones(words: list[bytes], cut: int) -> None:
    shown = b"".join(words)
    assert undoing(shown[:cut], shown[cut:]) == undoing(shown)
    assert undoing(shown, undoing(shown)) == b""


def test_what_was_undone_is_done_again() -> None:
    modes = Modes()
    modes.feed(b"\x1b[?1049;25;2004h\x1b[?25l\x1b[?2004l")
    assert modes.redoing() == b"\x1b[?25l\x1b[?1049h"
