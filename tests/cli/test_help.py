"""Help pages and suggestions of all commands."""

from __future__ import annotations

import re

import pytest

from pycrictl.cli.application import HOSTS, IGNORED
from pycrictl.cli.command_table import FAMILIES
from tests.cli.run import Run
from tools import surface
from tools.surface import Command

PROGRAM = surface.program()
ALL = tuple(PROGRAM.walk())
COLUMNS = 80


def shown(*words: str) -> str:
    run = Run(*words)
    assert run.code == 0
    return run.stdout


def without_spaces(text: str) -> str:
    return "".join(text.split())


def named(command: Command) -> str:
    return " ".join(command.path) or "program"


@pytest.mark.parametrize("command", ALL, ids=named)
def test_it_fits_and_is_whole(command: Command) -> None:
    text = shown(*command.path, "--help")
    assert max(map(len, text.splitlines())) <= COLUMNS
    assert text.startswith(f"Usage: pycrictl {' '.join(command.path)}".rstrip())
    flat = surface._VARIABLE.sub("", " ".join(text.split()))
    joined = without_spaces(flat)  # words may be broken at hyphens
    for option in command.options:
        assert ", ".join(option.names) in flat
        assert without_spaces(option.help) in joined
    for argument in command.arguments:
        assert without_spaces(argument.help) in joined
    for line in command.examples:
        assert without_spaces(f"Example: {line}") in joined
    for alias in command.aliases:
        assert "Also called: " in flat
        assert re.search(rf"Also called: .*\b{re.escape(alias)}\b", flat)
    assert not re.search(r"[{}]", text.split("\n\n")[0])
    assert "None" not in text


def test_h_and_help_and_the_aliases_show_the_same() -> None:
    for command in ALL[1:]:
        whole = shown(*command.path, "--help") if command.aliases or command.name == "ps" else ""
        if command.name == "ps":
            assert shown("ps", "-h") == shown("help", "ps") == whole
        for alias in command.aliases:
            other = shown(*command.path[:-1], alias, "--help")
            assert other.splitlines()[1:] == whole.splitlines()[1:]


def test_commands_stand_by_family_with_their_aliases() -> None:
    text = shown("--help")
    sections = re.findall(r"^(\S[^\n]*):\n((?:  .*\n)+)", text, re.MULTILINE)
    families = dict(sections)
    assert [name for name, _ in sections] == [*FAMILIES, "Options", HOSTS, IGNORED]
    for family, entries in FAMILIES.items():
        for entry in entries:
            row = ", ".join((entry.name, *entry.aliases))
            assert re.search(rf"^  {re.escape(row)}(  |$)", families[family], re.MULTILINE), row
            assert entry.summary in " ".join(families[family].split())


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        *(("inspec", "inspect"), ("EXCE", "exec"), ("versione", "version"), ("zzzz", "")),
    ],
)
def test_the_nearest_command_is_suggested(typed: str, meant: str) -> None:
    run = Run(typed)
    assert (run.code, run.stdout) == (3, "")
    hint = f'did you mean "{meant}"?' if meant else "'pycrictl --help' lists the commands"
    assert run.stderr == f'pycrictl: unknown command "{typed}"\nhint: {hint}\n'


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("--quite", "--quiet"), ("--al", "--all"), ("--no-truncate", "--no-trunc"), ("-all", None)],
)
def test_an_option_is_suggested_as_it_is_typed(typed: str, meant: str | None) -> None:
    run = Run("-r", "/nonexistent", "--max-retries=0", "ps", typed)
    if meant is None:  # one dash is enough for a long name, as in crictl
        assert "cannot reach" in run.stderr
    else:
        assert run.stderr.endswith(f"hint: did you mean {meant}?\n")


REQUIRED = {
    "CONTAINER-CONFIG": "/nonexistent.yaml",
    "[LOCAL:]REMOTE": "80",
    "SRC": "web:/a",
    "status|set|cancel|history": "status",
}


@pytest.mark.parametrize(
    ("command", "option"),
    [
        pytest.param(command, option, id=f"{command.name}-{option.names[-1]}")
        for command in PROGRAM.subcommands
        for option in command.options
        if "|" in option.metavar
    ],
)
def test_the_values_are_told_for_an_unknown_one(command: Command, option: surface.Option) -> None:
    words = [
        REQUIRED.get(argument.metavar, "x")
        for argument in command.arguments
        if argument.is_required or command.name in ("exec", "debug")  # the words of another program
    ]
    run = Run(
        "-r", "/nonexistent", "--max-retries=0",
        *(command.name, f"{option.names[-1]}=nosuch", *words),
        environ={},
    )  # fmt: skip
    assert run.code == 1
    assert run.stdout == ""
    assert "/nonexistent" not in run.stderr, "the value is looked at before anything is done"
    assert len(run.stderr.splitlines()) <= 2
    for choice in option.choices:
        assert choice.rstrip("=") in run.stderr
