"""The tree as plain data: nothing of it is missing, and nothing stands for two things."""

from __future__ import annotations

import shlex

from pycrictl.cli.command_table import COMMANDS
from pycrictl.cli.tree import command_of, completer
from tools import surface
from tools.surface import Command

PROGRAM = surface.program()
ALL = tuple(PROGRAM.walk())


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


NAMES_OF_THINGS = ("CONTAINER", "POD", "IMAGE", "FILE", "DIR", "SOCKET", "KEY", "SRC", "DST")


def test_what_names_a_thing_completes_to_such_things() -> None:
    for entry in COMMANDS:
        function = entry.load()
        for each in command_of(entry).params:
            if each.metavar in NAMES_OF_THINGS:
                assert completer(function, each) is not None, (entry.name, each.name)
