"""Both readers of values against each other: the plain one, and Typer."""

from __future__ import annotations

import shlex
from itertools import chain
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycrictl.cli import declare, plain, validation
from pycrictl.cli.context import AppContext
from pycrictl.cli.program import set_globals
from pycrictl.cli.table import BY_NAME, COMMANDS, Entry
from pycrictl.config import Flags
from pycrictl.environ import Environment
from pycrictl.errors import UsageError
from tests.captures import everything
from tests.captures.runtimes import with_ids

ENTRIES = [each for entry in COMMANDS for each in (entry, *entry.subcommands)]


class Meant(NamedTuple):
    """What a command line means: the call, and what the context has beside it."""

    call: declare.Call
    beside: tuple[Any, ...]


def meant(words: list[str], reader: plain.Reader) -> Meant | None:
    """What a line means; None for one that is wrong."""
    app = AppContext(Environment(), Flags())
    try:
        call = plain.read(words, app, reader)
    except (UsageError, plain.NotPlainError):
        return None
    return Meant(call, (app.flags, app.path, app.negated, app.recording))


def by_plain(words: list[str]) -> Meant | None:
    return meant(words, lambda function, line, _: plain.plain_values(function, line))


def by_typer(words: list[str]) -> Meant | None:
    return meant(words, validation.values)


def recorded_lines() -> list[list[str]]:
    """The words of each call of crictl in the recordings, as the shell splits them."""
    lines = []
    for capture in everything():
        tokens = shlex.shlex(with_ids(capture.command), posix=True, punctuation_chars=True)
        tokens.whitespace_split = True
        try:
            found = list(tokens)
        except ValueError:  # a command in quotes that are not closed before the end of the token
            continue
        while "crictl" in found:
            found = found[found.index("crictl") + 1 :]
            ends = [place for place, word in enumerate(found) if set(word) & set(";|&<>()")]
            lines.append(found[: min(ends, default=len(found))])
    return lines


def test_every_recorded_line_means_the_same() -> None:
    lines = recorded_lines()
    assert len(lines) > 300
    valid = 0
    for words in lines:
        found = by_plain(words)
        assert found == by_typer(words), words
        valid += found is not None
    assert valid > 200


def spellings(function: Any) -> list[str]:
    return sorted(declare.specs(declare.parameters(function)))


VALUES = st.sampled_from(
    ["", "1", "-1", "0x10", "5s", "1Gi", "a=b", "true", "false", "f", "json", "x y", "=", "ä", "--"]
)
DASHES = st.sampled_from(["-", "--"])


def options_of(function: Any) -> st.SearchStrategy[list[str]]:
    name = st.tuples(DASHES, st.sampled_from(spellings(function))).map("".join)
    return st.one_of(
        name.map(lambda word: [word]),
        st.tuples(name, VALUES).map(list),
        st.tuples(name, VALUES).map(lambda pair: ["=".join(pair)]),
    )


def lines_of(entry: Entry, path: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    word = st.one_of(VALUES, st.sampled_from(["help", "h", "jsonschema", "-", "-aq"]))
    piece = st.one_of(options_of(entry.load()), word.map(lambda each: [each]))
    before = st.lists(options_of(set_globals), max_size=2)
    return st.tuples(before, st.lists(piece, max_size=5)).map(
        lambda both: [*chain(*both[0]), *path, *chain(*both[1])]
    )


LINES = st.one_of(
    [
        lines_of(entry, path)
        for outer in COMMANDS
        for entry, path in [(outer, (outer.name,))]
        + [(inner, (outer.name, inner.aliases[0])) for inner in outer.subcommands]
    ]
)


@settings(max_examples=400, deadline=None)
@given(LINES)
def test_random_lines_mean_the_same(words: list[str]) -> None:
    assert by_plain(words) == by_typer(words)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=6), max_size=4), st.sampled_from(["", *BY_NAME]))
def test_arbitrary_words_mean_the_same(words: list[str], name: str) -> None:
    line = [name, *words] if name else words
    assert by_plain(line) == by_typer(line)


@pytest.mark.parametrize("text", ["", "5s", "5", "-1s"])
def test_variables_mean_the_same(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CRICTL_AUTH", "CRICTL_CREDS", "CRICTL_PULL_TIMEOUT"):
        monkeypatch.setenv(name, text)
    for words in (["pull", "x"], ["pull", "-pt", "3s", "x"], ["run", "a", "b"]):
        found = by_plain(words)
        assert found == by_typer(words)
        assert (found is None) == (text == "5" and "-pt" not in words)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["logs", "web", "--tail", "3", "-f"], {"container": "web", "tail": 3, "follow": True}),
        (["-t", "5s", "rmi", "a", "-q", "b"], {"images": ["a", "b"], "prune": True}),
        (["version", "x"], None),
        (["exec", "web", "ls", "-l"], {"words": ["web", "ls", "-l"]}),
        (["stop", "-t=3", "a", "b"], {"containers": ["a", "b"], "timeout": 3}),
        (["ps", "--label", "a=b", "--label=c"], {"labels": ["a=b", "c"]}),
    ],
)
def test_what_lines_mean(words: list[str], values: dict[str, Any] | None) -> None:
    found = by_plain(words)
    assert found == by_typer(words)
    if values is None:
        assert found is None
    else:
        assert found is not None
        assert found.call.values.items() >= values.items()


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.target)
def test_only_the_last_argument_is_a_list(entry: Entry) -> None:
    found = declare.parameters(entry.load())
    arguments = [each for each in found if isinstance(each.declared, declare.Argument)]
    assert not any(each.is_list for each in arguments[:-1])


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.target)
def test_what_is_not_text_has_a_parser(entry: Entry) -> None:
    for each in declare.parameters(entry.load()):
        if each.is_switch or each.is_list or each.type in (str, str | None):
            continue
        assert isinstance(each.declared, declare.Option), each.name
        assert each.declared.parser is not None, each.name
