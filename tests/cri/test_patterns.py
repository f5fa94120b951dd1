from __future__ import annotations

import pytest

from pycrictl.cri.patterns import compile_pattern
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
    assert bool(compile_pattern(pattern, option="--name").search(text)) is matches


@pytest.mark.parametrize(
    "pattern",
    ["(", "[", "*", "a**", r"\pL", r"\z", "[[:alpha:]]", "a{99999999999}", "(" * 5000, "\x1b[("],
)
def test_invalid_patterns_get_one_line(pattern: str) -> None:
    with pytest.raises(UsageError) as caught:
        compile_pattern(pattern, option="--name")
    message = caught.value.message
    assert message.isprintable()
    assert " for --name is not a valid regular expression: " in message
    assert len(message) < 300
