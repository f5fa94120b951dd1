"""Help under the name ``crictl``, in crictl's format, because scripts search it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Final

import typer
from typer.core import TyperCommand, TyperOption

from pycrictl.cli.command_table import COMMANDS

Row = tuple[str, str]

TITLE: Final = "crictl - client for CRI"
"""The title in the program's help."""

SUMMARIES: Final = {"pull": "Pull an image from a registry."}
"""Summaries that scripts search help pages for, where the command's own differs."""

_HELP_WORD = ("help, h", "Show a page of help")


def page(command: TyperCommand, ctx: typer.Context) -> str:
    return "\n\n".join(_set(*block) for block in _blocks(command, ctx) if block[1])


def _blocks(command: TyperCommand, ctx: typer.Context) -> Iterator[tuple[str, Sequence[Row | str]]]:
    path = ctx.command_path
    found = command.get_params(ctx)
    options = [_row(each) for each in found if isinstance(each, TyperOption)]
    entry = getattr(command, "entry", None)
    if entry is None:
        yield "NAME:", [TITLE]
        yield "USAGE:", [f"{path} [global options] command [command options]"]
        yield "VERSION:", [ctx.obj.persona.version]
        yield "COMMANDS:", [*sorted(each.row for each in COMMANDS), _HELP_WORD]
        yield "GLOBAL OPTIONS:", options
        return
    words = [each.make_metavar(ctx) for each in found if not isinstance(each, TyperOption)]
    summary, *texts = [
        " ".join(paragraph.split())
        for paragraph in inspect.cleandoc(command.help or "").split("\n\n")
    ]
    yield "NAME:", [f"{path} - {SUMMARIES.get(entry.name, summary)}"]
    yield "USAGE:", [" ".join([f"{path} [command options]", *words])]
    yield "COMMANDS:", [*(each.row for each in entry.subcommands), _HELP_WORD]
    yield "OPTIONS:", options
    program = ctx.obj.persona.program
    yield "DESCRIPTION:", [text.replace("pycrictl ", f"{program} ") for text in texts]


def _row(option: TyperOption) -> Row:
    value = "" if option.is_flag else " value"
    name = ", ".join(f"{each}{value}" for each in sorted(option.opts, key=len, reverse=True))
    if option.multiple:
        name += f" [ {name} ]"
    text, default = option.help or "", bool(option.default) if option.is_flag else option.default
    if not option.show_default or default in (None, ""):
        return name, text
    shown = f'"{default}"' if isinstance(default, str) else str(default).lower()
    return name, f"{text} (default: {shown})"


def _set(heading: str, content: Sequence[Row | str]) -> str:
    first = max((len(each[0]) for each in content if not isinstance(each, str)), default=0)
    lines: list[str] = []
    for each in content:
        if isinstance(each, str):
            lines += [*(("",) if lines else ()), each]
        else:
            lines.append(f"{each[0]:{first}}  {each[1]}")
    return "\n".join([heading, *(f"   {line}".rstrip() for line in lines)])
