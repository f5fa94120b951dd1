"""The Typer command tree: how lines are parsed, and that Typer's own features stay hidden."""

from __future__ import annotations

import io
from typing import Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from pycrictl.base.config import Flags
from pycrictl.base.environ import Environment
from pycrictl.base.errors import OptionError, PycrictlError, UsageError
from pycrictl.cli.application import application
from pycrictl.cli.argv import by_spelling
from pycrictl.cli.command_table import COMMANDS, CommandSpec
from pycrictl.cli.context import AppContext
from pycrictl.cli.persona import Persona
from pycrictl.cli.tree import Program, command_of
from tests.cli.run import Run

ENTRIES = [command for entry in COMMANDS for command in (entry, *entry.subcommands)]


def meant(words: list[str]) -> dict[str, Any]:
    """Return the arguments with which the function of a line's command is called."""
    tree = typer.main.get_command(application)
    assert isinstance(tree, Program)
    app = AppContext(Environment(stdout=io.StringIO()), Flags(), Persona())
    root = tree.make_context("pycrictl", list(words), obj=app)
    name, command, rest = tree.resolve(root)
    return command.make_context(name, rest, parent=root).params


VALUES = st.sampled_from(
    ["", "1", "-1", "0x10", "5s", "1Gi", "a=b", "true", "false", "f", "json", "x y", "=", "ä", "--"]
)


def lines_of(entry: CommandSpec, path: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    spellings = sorted(by_spelling(command_of(entry).params))
    name = st.tuples(st.sampled_from(["-", "--"]), st.sampled_from(spellings)).map("".join)
    option = st.one_of(name, st.tuples(name, VALUES).map("=".join)) if spellings else VALUES
    word = st.sampled_from(["help", "h", "jsonschema", "-", "-aq", "\udcff"])
    words = st.lists(st.one_of(option, VALUES, word), max_size=6)
    return words.map(lambda line: [*path, *line])


LINES = st.one_of(
    [
        lines_of(entry, path)
        for outer in COMMANDS
        for entry, path in [(outer, (outer.name,))]
        + [(inner, (outer.name, inner.names[-1])) for inner in outer.subcommands]
    ]
)


@settings(max_examples=100, deadline=None)
@given(LINES)
def test_random_lines_are_read_or_refused(words: list[str]) -> None:
    said = ""
    try:
        meant(words)
    except typer.Exit:
        pass  # the help
    except PycrictlError as exc:
        said = exc.message
    assert "\n" not in said


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["logs", "web", "--tail", "3", "-f"], {"container": "web", "tail": 3, "follow": True}),
        (["-t", "5s", "rmi", "a", "-q", "b"], {"images": ("a", "b"), "prune": True}),
        (["exec", "web", "ls", "-l"], {"container": "web", "command": ("ls", "-l")}),
        (["exec", "web", "--", "ls", "--"], {"container": "web", "command": ("ls", "--")}),
        (["exec", "--", "web", "-x"], {"container": "web", "command": ("-x",)}),
        (["debug", "web", "--", "ls"], {"container": "web", "command": ("ls",)}),
        (["stop", "-t=3", "a", "b"], {"containers": ("a", "b"), "timeout": 3}),
        (["ps", "--label", "a=b", "--label=c"], {"labels": ("a=b", "c")}),
        (["ps", "-aqn", "1", "-n=2"], {"all_": True, "quiet": True, "last": 2}),
        (["ps", "-a", "-a=false", "--name="], {"all_": False, "name": ""}),
        (["ps", "--state", "RUNNING"], {"state": "running"}),
        (["ps", "--state", ""], {"state": None}),
        (["stop", "--timeout", "-0x1"], {"timeout": -1}),
        (["rm", "--", "-f"], {"containers": ("-f",), "force": False}),
        *(
            (["ps", *option.split()], {"last": 3})
            for option in ("--last 3", "-last 3", "-n 3", "-n=3")
        ),
        *((["ps", f"--all={word}"], {"all_": True}) for word in "1 t T true TRUE True".split()),
        *(
            (["ps", "-a", f"-a={word}"], {"all_": False})
            for word in "0 f F false FALSE False".split()
        ),
        (["pull", "-pt", "5s", "x"], {"pull_timeout": 5.0}),  # a name wins over bundled flags
        (["ps", "--last", "-1", "--label", "--all"], {"last": -1, "labels": ("--all",)}),
        (["stop", "a", "-t", "1", "-"], {"containers": ("a", "-"), "timeout": 1}),
        (["create", "js", "-p"], {"pod": True}),
        (["cp", "\udcff", "web:/"], {"paths": ("\udcff", "web:/")}),
        (["ps", "-q", "--quiet=false", "--help=false"], {"quiet": False}),
    ],
    ids=" ".join,
)
def test_what_lines_mean(words: list[str], values: dict[str, Any]) -> None:
    assert meant(words).items() >= values.items()


@pytest.mark.parametrize(
    ("words", "flag_error"),
    [
        (["ps", "-n", "z"], 'invalid value "z" for flag -n: parse error'),
        (["ps", "-last=z"], 'invalid value "z" for flag -last: parse error'),
        (["ps", "-qn", ""], 'invalid value "" for flag -n: parse error'),
        (["-t", "5", "ps"], 'invalid value "5" for flag -t: parse error'),
    ],
    ids=" ".join,
)
def test_a_wrong_value_is_told_as_it_was_typed(words: list[str], flag_error: str) -> None:
    with pytest.raises(OptionError) as caught:
        meant(words)
    assert caught.value.flag_error == flag_error


@pytest.mark.parametrize("text", ["", "5s", "5", "-1s"])
def test_variables(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CRICTL_AUTH", "CRICTL_CREDS", "CRICTL_PULL_TIMEOUT"):
        monkeypatch.setenv(name, text)
    assert meant(["pull", "-pt", "3s", "x"])["pull_timeout"] == 3.0
    assert meant(["pull", "-pt", "3s", "x"])["creds"] == text
    if text in ("5", "-1s"):
        with pytest.raises(UsageError, match=r"^the variable CRICTL_PULL_TIMEOUT: "):
            meant(["pull", "x"])
    else:
        wanted = {"": 0.0, "5s": 5.0}[text]
        assert meant(["pull", "x"])["pull_timeout"] == wanted


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.target)
def test_numbers_are_read_as_go_reads_them(entry: CommandSpec) -> None:
    """Typer's own integer parser rejects 0x10, and accepts forms that Go rejects."""
    for parameter in command_of(entry).params:
        assert parameter.type.name not in ("int", "float"), parameter.name


def test_the_table_cannot_drift() -> None:
    for entry in COMMANDS:
        summary, *texts = (command_of(entry).help or "").split("\n\n")
        assert summary == f"{entry.summary}."
        assert any(text.startswith("Example: pycrictl ") for text in texts), entry.name


def test_secrets_stay_out_of_errors() -> None:
    run = Run("pull", "--creds", "user:hunter2", "--auth", "c2VjcmV0", "a")
    assert run.code == 1
    assert "hunter2" not in run.stderr
    assert "c2VjcmV0" not in run.stderr
