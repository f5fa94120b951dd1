"""The tree as plain data: nothing of it is missing, and nothing stands for two things."""

from __future__ import annotations

import shlex

from pycrictl.cli.command_table import COMMANDS
from pycrictl.cli.tree import command_of, completer
from tools import surface
from tools.surface import Command, Option

PROGRAM = surface.program()
ALL = tuple(PROGRAM.walk())


def find(*path: str) -> Command:
    (found,) = (command for command in ALL if command.path == path)
    return found


def option(command: Command, name: str) -> Option:
    (found,) = (each for each in command.options if name in each.names)
    return found


def test_every_command_is_there() -> None:
    paths = [(entry.name,) for entry in COMMANDS]
    inner = [(entry.name, each.name) for entry in COMMANDS for each in entry.subcommands]
    assert [command.path for command in PROGRAM.subcommands] == paths
    assert {command.path for command in ALL} == {(), *paths, *inner}


def test_every_command_is_whole() -> None:
    for command in ALL:
        assert_whole(command)


def assert_whole(command: Command) -> None:
    assert command.summary
    assert not command.summary.endswith(".")
    names = [name for each in command.options for name in each.names]
    assert len(names) == len(set(names))
    assert {"-h", "--help"} <= set(names)
    for each in command.options:
        assert each.help
        assert bool(each.metavar) is not each.is_switch
        assert "\n" not in each.help
        assert each.is_repeatable is ("repeatable" in each.help), each.names
    for argument in command.arguments:
        assert argument.help
        assert "..." not in argument.metavar
    # Words after one that repeats, or required ones after an optional one, could not be told apart.
    assert not any(argument.is_repeatable for argument in command.arguments[:-1])
    if command.path:
        assert command.family
        assert command.examples


def test_examples_are_of_their_command() -> None:
    for command in ALL[1:]:
        for _, line in command.examples:
            assert "pycrictl " in line
            assert f" {command.name}" in line  # below its parent, or another one that has it
        assert shlex.split(line)


def test_options() -> None:
    ps = find("ps")
    assert option(ps, "-q").names == ("-q", "--quiet")
    assert option(ps, "-q").is_switch
    assert option(ps, "--state").choices == ("created", "running", "exited", "unknown")
    assert option(ps, "--output").default == "table"
    assert option(ps, "--label").is_repeatable
    assert option(find("pull"), "-pt").environ == ("CRICTL_PULL_TIMEOUT",)


def test_only_commands_whose_words_go_on_are_remote() -> None:
    assert [command.name for command in ALL if command.is_remote] == ["exec", "debug"]
    assert all(command.arguments[-1].is_repeatable for command in ALL if command.is_remote)


NAMES_OF_THINGS = ("CONTAINER", "POD", "IMAGE", "FILE", "DIR", "SOCKET", "KEY", "SRC", "DST")


def test_what_names_a_thing_completes_to_such_things() -> None:
    for entry in COMMANDS:
        function = entry.load()
        for each in command_of(entry).params:
            if each.metavar in NAMES_OF_THINGS:
                assert completer(function, each) is not None, (entry.name, each.name)
