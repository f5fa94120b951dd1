from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.cli.argv import CommandLine, OptionSpec, parse
from pycrictl.errors import UsageError

ALL = OptionSpec("--all", is_switch=True)
QUIET = OptionSpec("--quiet", is_switch=True)
LAST = OptionSpec("--last")
LABEL = OptionSpec("--label", is_repeatable=True)
PULL_TIMEOUT = OptionSpec("--pull-timeout")
OPTIONS = {
    "all": ALL,
    "a": ALL,
    "quiet": QUIET,
    "q": QUIET,
    "last": LAST,
    "n": LAST,
    "label": LABEL,
    "pull-timeout": PULL_TIMEOUT,
    "pt": PULL_TIMEOUT,
}


def line(*words: str, interspersed: bool = True) -> CommandLine:
    return parse(words, OPTIONS, interspersed=interspersed)


@pytest.mark.parametrize(
    "words",
    [["--last", "3"], ["-last", "3"], ["--last=3"], ["-n", "3"], ["-n=3"], ["-last=3"]],
)
def test_spellings_of_one_option(words: list[str]) -> None:
    assert line(*words).options == ["--last=3"]


def test_bundled_letters_may_end_in_one_that_takes_a_value() -> None:
    parsed = line("-aqn", "1", "x")
    assert sorted(parsed.options) == ["--all", "--last=1", "--quiet"]
    assert parsed.positionals == ["x"]


def test_a_name_wins_over_a_bundle() -> None:
    assert line("-pt", "5s").options == ["--pull-timeout=5s"]


@pytest.mark.parametrize("word", ["-qx", "-aqz", "--aq"])
def test_a_bundle_with_an_unknown_letter_is_unknown(word: str) -> None:
    with pytest.raises(UsageError, match=f'unknown option "{word}"'):
        line(word)


@pytest.mark.parametrize("text", ["1", "t", "T", "true", "TRUE", "True"])
def test_switch_given_as_true(text: str) -> None:
    assert line(f"--all={text}").options == ["--all"]


@pytest.mark.parametrize("text", ["0", "f", "F", "false", "FALSE", "False"])
def test_switch_given_as_false_is_remembered(text: str) -> None:
    parsed = line("-a", f"--all={text}")
    assert parsed.options == []
    assert parsed.negated == {"--all"}


def test_switch_never_takes_the_next_word() -> None:
    assert line("--all", "false").positionals == ["false"]


def test_switch_with_no_boolean() -> None:
    with pytest.raises(UsageError, match='option "--all"'):
        line("--all=maybe")


def test_last_scalar_wins_and_lists_add_up() -> None:
    parsed = line("-n", "1", "--label", "a=b", "-last=2", "--label=c=d")
    assert parsed.options == ["--label=a=b", "--label=c=d", "--last=2"]


def test_an_option_takes_the_next_word_whatever_it_looks_like() -> None:
    assert line("--last", "-1", "--label", "--all").options == ["--label=--all", "--last=-1"]


def test_missing_value() -> None:
    with pytest.raises(UsageError, match='option "-n" needs a value'):
        line("-n")


def test_nearest_option_is_suggested() -> None:
    with pytest.raises(UsageError) as caught:
        line("--quite")
    assert caught.value.hint == "did you mean --quiet?"


def test_options_after_positionals() -> None:
    assert line("x", "-q").options == ["--quiet"]


def test_a_remote_command_line_is_left_alone() -> None:
    parsed = line("-q", "ID", "ls", "-la", "--", "-q", interspersed=False)
    assert parsed.options == ["--quiet"]
    assert parsed.positionals == ["ID", "ls", "-la", "--", "-q"]


def test_double_dash_ends_options() -> None:
    parsed = line("-q", "--", "-a", "-")
    assert parsed.positionals == ["-a", "-"]
    assert parsed.words() == ["--quiet", "--", "-a", "-"]


def test_a_lone_dash_is_a_positional() -> None:
    assert line("-").positionals == ["-"]


@given(st.lists(st.text(max_size=6), max_size=8), st.booleans())
def test_any_words_parse_or_are_refused(words: list[str], interspersed: bool) -> None:
    try:
        parsed = parse(words, OPTIONS, interspersed=interspersed)
    except UsageError:
        return
    assert all(option.startswith("--") for option in parsed.options)
    assert len(parsed.positionals) <= len(words)
