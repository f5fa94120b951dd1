from __future__ import annotations

import pytest

from pycrictl.show.displays import phrases


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain text", "plain text"),
        ("two\nlines\t\r and \x85more\u2028end", "two lines and more end"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("x" * 301, "x" * 297 + "..."),
        ("x" * 300, "x" * 300),
        ("é 宽", "é 宽"),
        ("", ""),
    ],
)
def test_clean(text: str, expected: str) -> None:
    assert phrases.clean(text) == expected


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("docker.io/library/busybox:1.36", "docker.io/library/busybox:1.36"),
        (f"pause@sha256:{'ab' * 32}", "pause@sha256:abababababab"),
        (f"pause:3@sha256:{'ab' * 32}", "pause:3@sha256:abababababab"),
        ("", ""),
    ],
)
def test_short_image(reference: str, expected: str) -> None:
    assert phrases.short_image(reference) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.0, "0:00"),
        (0.2, "0:01"),
        (59.5, "1:00"),
        (3599, "59:59"),
        (3600, "1:00:00"),
        (359_999, "99:59:59"),
        (360_000, ">99 h"),
        (float("inf"), ">99 h"),
        (float("nan"), ">99 h"),
    ],
)
def test_clock(seconds: float, expected: str) -> None:
    assert phrases.clock(seconds) == expected


@pytest.mark.parametrize(
    ("name", "columns", "shown"),
    [
        ("127.0.0.1:34127/slow5:1 for default/w2", 38, "127.0.0.1:34127/slow5:1 for default/w2"),
        ("127.0.0.1:34127/slow5:1 for default/w2", 26, "slow5:1 for default/w2"),
        ("127.0.0.1:34127/slow5:1 for default/w2", 17, "slow5:1 …fault/w2"),
        ("ghcr.io/team/shop/web:1.4 on n1 for shop/web-0", 34, "web:1.4 on n1 for shop/web-0"),
        ("ghcr.io/team/shop/web:1.4 on n1", 26, "team/shop/web:1.4 on n1"),
        ("team/shop/web:1.4", 10, "web:1.4"),
        ("one of a/b:1, c/d:2 (sha256:0)", 11, "one o…56:0)"),
    ],
)
def test_of_a_pulls_name_the_image_stays(name: str, columns: int, shown: str) -> None:
    assert phrases.cut_name(name, columns) == shown
