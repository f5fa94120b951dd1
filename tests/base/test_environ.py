from __future__ import annotations

import io
import logging
import termios
from collections.abc import Iterator

import pytest

from pycrictl.base import environ
from pycrictl.base.environ import Environment
from tests.show.screen import Terminal


@pytest.mark.parametrize(
    ("encoding", "expected"), [("utf-8", True), ("UTF8", True), ("ascii", False)]
)
def test_utf8(encoding: str, expected: bool) -> None:
    assert environ.is_utf8(io.TextIOWrapper(io.BytesIO(), encoding=encoding)) is expected
    assert not environ.is_utf8(io.StringIO())  # it has no encoding


def test_the_terminal_tells_its_size_each_time() -> None:
    with Terminal(80, 24) as terminal:
        env = Environment(stderr=terminal.stderr, environ={"COLUMNS": "11", "LINES": "12"})
        assert env.terminal_size() == (80, 24)
        termios.tcsetwinsize(terminal.stderr.fileno(), (5, 20))
        assert env.terminal_size() == (20, 5)
        termios.tcsetwinsize(terminal.stderr.fileno(), (0, 0))
        assert env.terminal_size() == (11, 12)


@pytest.mark.parametrize(
    ("variables", "size"),
    [
        ({}, (80, 24)),
        ({"COLUMNS": "132"}, (132, 24)),
        ({"COLUMNS": "-1", "LINES": "many"}, (80, 24)),
        ({"COLUMNS": "", "LINES": "0"}, (80, 24)),
    ],
)
def test_size_without_a_terminal(variables: dict[str, str], size: tuple[int, int]) -> None:
    assert environ.terminal_size(io.StringIO(), variables) == size


def test_errors_and_warnings_are_single_lines_that_cannot_steer_a_terminal() -> None:
    stderr = io.StringIO()
    env = Environment(stderr=stderr)
    env.warn("file\nhas \x1b[31mcolour")
    env.error('no image "\u202ex"', hint="try\r\nagain")
    env.error("no hint")
    assert stderr.getvalue().splitlines() == [
        "pycrictl: warning: file has \\x1b[31mcolour",
        'pycrictl: no image "\\u202ex"',
        "hint: try again",
        "pycrictl: no hint",
    ]


def test_a_piped_password_is_the_first_line() -> None:
    stderr = io.StringIO()
    env = Environment(stdin=io.StringIO("secret \nmore\n"), stderr=stderr)
    assert env.ask_password() == "secret "
    assert stderr.getvalue() == ""


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("pycrictl")
    before = logger.handlers, logger.level, logger.propagate
    yield logging.getLogger("pycrictl.cri")
    logger.handlers, logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def test_logging_with_debug_tells_all_and_when(logger: logging.Logger) -> None:
    early, late = io.StringIO(), io.StringIO()
    Environment(stderr=early).configure_logging(debug=True)
    Environment(stderr=late).configure_logging(debug=True)
    logger.debug("call")
    assert early.getvalue() == ""
    time, message = late.getvalue().split(" ", 1)
    assert len(time) == len("12:34:56.789")
    assert message == "DEBUG pycrictl.cri: call\n"
