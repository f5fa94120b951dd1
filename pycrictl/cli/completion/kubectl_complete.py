"""Completion of kubectl's plugins, as kubectl calls it (kubectl 1.26).

It runs ``kubectl_complete-NAME`` with the words typed so far, the last of them being the one to
complete. The answer is a candidate a line, a description after a tab, and a directive in the last
line, as cobra has it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NoReturn

import typer
from typer.core import TyperOption

from pycrictl.cli import plugins
from pycrictl.cli.command_table import Entry
from pycrictl.cli.complete import PATHS
from pycrictl.cli.completion import cluster_names, line
from pycrictl.cli.completion.answer import in_time
from pycrictl.cli.tree import Command, canonical, declared
from pycrictl.errors import PycrictlError

NO_FILES: Final = 4
"""cobra's ShellCompDirectiveNoFileComp."""

FILES: Final = 0
"""cobra's ShellCompDirectiveDefault: file names will do."""

NO_SPACE: Final = 2
"""cobra's ShellCompDirectiveNoSpace: the word goes on; without candidates, file names will do."""

_PATHS: Final = (
    *("--kubeconfig", "--kuberc", "--cache-dir", "--certificate-authority", "--client-key"),
    "--client-certificate",
)
"""Options of kubectl's own whose values are paths."""


def run(program: str, words: Sequence[str]) -> NoReturn:
    """Answer and end the process with status 0; after any error without candidates.

    Args:
        program: the name that kubectl calls the program by.
        words: the command line after the plugin's name, up to the word that is completed.
    """
    output = in_time(partial(_write, program, words), cluster_names.LIMIT_S)
    with suppress(OSError):
        os.write(1, output or f":{NO_FILES}\n".encode())
    os._exit(0)


def _write(program: str, words: Sequence[str], pipe: int) -> None:
    entry = plugins.completed(program)
    if entry is None or not words:
        return
    lines, directive = answer(entry, words)
    with open(pipe, "wb") as file:
        file.write("".join(f"{line}\n" for line in [*lines, f":{directive}"]).encode())


def answer(entry: Entry, words: Sequence[str]) -> tuple[list[str], int]:
    try:
        place = line.find(plugins.KUBECTL, [plugins.name_of(entry), *words])
    except (PycrictlError, typer.Exit):
        return [], NO_FILES
    if words[-1].startswith("-") and not place.prefix and not place.option:
        return [each for each in _options(place.command) if each.startswith(words[-1])], NO_FILES
    if place.option in _PATHS:
        return [], FILES
    if place.parameter is None:
        offers = cluster_names.of_connection(place.ctx, place.option)
    else:
        offers = place.offers()
    lines = [
        f"{place.prefix}{word}" + (f"\t{about}" if about else "")
        for word, about in offers
        if word.startswith(place.beginning)
    ]
    info = declared(entry.load()).get(place.parameter.name or "") if place.parameter else None
    return lines, NO_SPACE if info and info.autocompletion in PATHS else NO_FILES


def _options(command: Command) -> Iterator[str]:
    for each in command.params:
        if isinstance(each, TyperOption):
            yield f"{canonical(each)}\t{each.help}"
    for name in plugins.HANDED_ON:
        yield f"--{name}\thanded on to kubectl"
    yield "--help\tShow this message and exit."
