"""What a program has switched in a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.streaming.terminal import Modes

FULL_SCREEN = b"\x1b[?1049h\x1b[?1h\x1b=\x1b[?25l\x1b[1;31mred"


def undoing(*pieces: bytes) -> bytes:
    modes = Modes()
    for piece in pieces:
        modes.feed(piece)
    return modes.undoing()


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (b"plain \xff text", b""),
        (b"\x1b[?1049hscreen", b"\x1b[?1049l"),
        (b"\x1b[?1049hscreen\x1b[?1049l", b""),
        (b"\x1b[?25l", b"\x1b[?25h"),
        (b"\x1b[?25l\x1b[?25h", b""),
        (b"\x1b[?25h", b""),
        (b"\x1b[?7l\x1b[?2004h", b"\x1b[?7h\x1b[?2004l"),
        (b"\x1b[?1000;1006h\x1b[?1000l", b"\x1b[?1006l"),
        (b"\x1b[?;25;l", b"\x1b[?25h"),
        (b"\x1b[?12h\x1b[?40h", b""),
        (b"\x1b=", b"\x1b>"),
        (b"\x1b=\x1b>", b""),
        (b"\x1b[1;31mred", b"\x1b[m"),
        (b"\x1b[38:2::1:2:3mred\x1b[0m", b""),
        (b"\x1b[7mls\x1b[m", b""),
        (FULL_SCREEN, b"\x1b[?1l\x1b[?25h\x1b[?1049l\x1b>\x1b[m"),
        (FULL_SCREEN + b"\x1bc", b""),
        (FULL_SCREEN + undoing(FULL_SCREEN), b""),
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


@pytest.mark.parametrize(
    ("written", "redone"),
    [
        (b"", b""),
        (b"\x1b[?1049;25h\x1b[?25l\x1b=\x1b[7m", b"\x1b[?25l\x1b[?1049h\x1b="),
        (b"\x1b[?1049h\x1b=\x1b[?1049l\x1b>", b""),
    ],
)
def test_what_was_undone_is_done_again(written: bytes, redone: bytes) -> None:
    modes = Modes()
    modes.feed(written)
    assert modes.redoing() == redone
