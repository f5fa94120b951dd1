"""The live command tree against crictl's: every name, alias, type, default and variable."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperOption

from pycrictl.base.units import format_duration
from pycrictl.cli.application import application
from pycrictl.cli.command_table import BY_NAME, CommandSpec
from pycrictl.cli.tree import command_of

SURFACE = json.loads((Path(__file__).parent.parent / "data" / "surface.json").read_text("utf-8"))

ZERO = {"string": "", "bool": False, "int": 0, "int64": 0, "duration": "0s", "stringslice": []}
"""crictl's defaults; ours may be None, so a command can tell whether an option was given."""

OTHER_TYPE = {("update", "oom-score-adj"): "a text that is no number is refused, not taken for 0"}

IN_THE_LIBRARY = {
    "config": "the default path is settled where the file is read",
    "max-retries": "the default is settled with the file",
    "timeout": "the default is settled with the file",
    "runtime-endpoint": "the variable is read with the file",
    "image-endpoint": "the variable is read with the file",
}
"""Global options whose default or variable is resolved later; the help mentions both."""


def options_of(params: Iterable[Any]) -> dict[str, TyperOption]:
    return {
        spelling.lstrip("-"): parameter
        for parameter in params
        if isinstance(parameter, TyperOption)
        for spelling in parameter.opts
    }


def type_of(option: TyperOption) -> str:
    if option.is_flag:
        return "bool"
    if option.multiple:
        return "stringslice"
    return {"DURATION": "duration", "INT": "int"}.get(option.metavar or "", "string")


def default_of(option: TyperOption, kind: str) -> Any:
    default: Any = option.default
    if default is None:
        return ZERO[kind]
    return format_duration(default) if kind == "duration" else default


def check(command: str, options: dict[str, TyperOption], flag: dict[str, Any]) -> None:
    name = flag["name"]
    option = options.get(name)
    assert option is not None, f"{command} has no --{name}"
    for alias in flag["aliases"]:
        assert options.get(alias) is option, f"{command} --{name} has no alias -{alias}"
    kind = flag["type"]
    if (command, name) not in OTHER_TYPE:
        assert type_of(option) == kind.removesuffix("64"), f"{command} --{name}"
    if name != "output" or flag["default"]:  # the default format may have a name here
        default = flag["default"]
        assert default_of(option, kind) == default, f"{command} --{name}"
    assert ([option.envvar] if option.envvar else []) == flag["env"]


def crictls_commands() -> list[tuple[CommandSpec, dict[str, Any]]]:
    """Return our entry and crictl's for each command in both, and for crictl's subcommands."""
    pairs = []
    for command in SURFACE["commands"]:
        entry = BY_NAME.get(command["name"])
        if entry is None:
            continue
        pairs.append((entry, command))
        for inner in command["subcommands"]:
            subcommands = [sub for sub in entry.subcommands if sub.name == inner["name"]]
            assert subcommands, f"{entry.name} has no {inner['name']}"
            pairs.append((subcommands[0], inner))
    return pairs


def test_every_command_is_crictls() -> None:
    pairs = crictls_commands()
    assert len(pairs) > 30
    for entry, command in pairs:
        assert set(command["aliases"]) <= set(entry.aliases), entry.name
        options = options_of(command_of(entry).params)
        for flag in command["flags"]:
            check(entry.name, options, flag)


@pytest.mark.parametrize("flag", SURFACE["global_flags"], ids=lambda flag: flag["name"])
def test_global_option_is_crictls(flag: dict[str, Any]) -> None:
    options = options_of(typer.main.get_command(application).params)
    name = flag["name"]
    if name not in IN_THE_LIBRARY:
        check("", options, flag)
        return
    option = options[name]
    assert all(options[alias] is option for alias in flag["aliases"])
    assert type_of(option) == flag["type"]
    text = option.help or ""
    assert all(f"[${variable}]" in text for variable in flag["env"])
    assert not flag["default"] or str(flag["default"]) in text
