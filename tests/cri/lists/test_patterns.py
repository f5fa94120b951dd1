from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from pycrictl.cri.lists import patterns
from pycrictl.cri.lists.patterns import Pattern
from pycrictl.errors import UsageError


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("web", "my-web-1", True),
        ("^(web|db)$", "web", True),
        ("^(web|db)$", "web-1", False),
        ("", "anything", True),
        (r"\d+", "٣", False),
        ("(?i)WEB", "web", True),
    ],
)
def test_names_are_searched(pattern: str, text: str, matches: bool) -> None:
    assert Pattern(pattern, option="--name").matches(text) is matches


@pytest.mark.parametrize(
    "pattern",
    ["(", "[", "*", "a**", r"\pL", r"\y", "[[:alpha:]]", "a{99999999999}", "(" * 5000, "\x1b[("],
)
def test_invalid_patterns_get_one_line(pattern: str) -> None:
    with pytest.raises(UsageError) as caught:
        Pattern(pattern, option="--name")
    message = caught.value.message
    assert message.isprintable()
    assert " for --name is not a valid regular expression: " in message
    assert len(message) < 300


def test_a_pattern_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "LIMIT_S", 0.1)
    pattern = Pattern("(a+)+$", option="--name")
    assert pattern.matches("a" * 30)
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(UsageError) as caught:
        pattern.matches("a" * 60 + "!")
    assert caught.value.message == '"(a+)+$" for --name takes too long to match'
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_pattern_serves_in_any_thread() -> None:
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(Pattern("web", option="--name").matches, "my-web").result()
