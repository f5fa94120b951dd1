"""The command tree as plain data, for what is made of it: completions and man pages.

The walk imports every command, so no command does it. The metavar of a word says what the word
completes to, so a metavar stands for one kind of thing everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import typer
from typer.core import TyperArgument, TyperOption

from pycrictl.cli import main, tree
from pycrictl.cli.table import COMMANDS, Entry, Grammar
from pycrictl.config import KEYS
from pycrictl.units import format_duration

if TYPE_CHECKING:
    import typer._click as click


class Completes(Enum):
    """What a word can be. ``ID`` kinds are IDs only, the others names as well."""

    NOTHING = auto()
    CONTAINER = auto()
    CONTAINER_ID = auto()
    CREATED_CONTAINER_ID = auto()
    RUNNING_CONTAINER_ID = auto()
    CONTAINER_PATH = auto()
    """A local path, or ``CONTAINER:PATH``."""
    POD = auto()
    POD_ID = auto()
    IMAGE = auto()
    FILE = auto()
    DIRECTORY = auto()
    SOCKET = auto()
    """A path, with or without ``unix://`` before it."""
    REMOTE = auto()
    """A word of another program's command line, which runs in a container."""


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        names: every spelling, as typed.
        metavar: stands for its value; empty for a switch.
        help: what it does.
        choices: its fixed values; one that ends in ``=`` goes on with free text.
        is_switch: whether it takes no value.
        is_repeatable: whether each time counts, not only the last.
        default: as it would be typed; empty if there is none or the help has it.
        environ: variables that stand for it.
        completes: what its value is.
    """

    names: tuple[str, ...]
    metavar: str
    help: str
    choices: tuple[str, ...]
    is_switch: bool
    is_repeatable: bool
    default: str
    environ: tuple[str, ...]
    completes: Completes


@dataclass(frozen=True)
class Argument:
    """One positional, with the attributes of an option. The metavar is without brackets."""

    metavar: str
    help: str
    choices: tuple[str, ...]
    is_required: bool
    is_repeatable: bool
    completes: Completes


@dataclass(frozen=True)
class Command:
    """One command, or the program itself.

    Attributes:
        path: its name and those above it, without the program's; ``()`` for the program.
        aliases: other names.
        family: the heading under which it is listed.
        summary: a line without a full stop.
        description: paragraphs that follow the summary.
        examples: what each does, and its command line.
        arguments: in their order.
        options: its own, without the program's global ones.
        subcommands: for the program, all commands.
        is_remote: whether the first positional ends the options, since another program's command
            line follows.
    """

    path: tuple[str, ...]
    aliases: tuple[str, ...]
    family: str
    summary: str
    description: tuple[str, ...]
    examples: tuple[tuple[str, str], ...]
    arguments: tuple[Argument, ...]
    options: tuple[Option, ...]
    subcommands: tuple[Command, ...]
    is_remote: bool

    @property
    def name(self) -> str:
        """The last part of the path; empty for the program."""
        return self.path[-1] if self.path else ""

    def walk(self) -> Iterator[Command]:
        """Yield the command and all commands below it."""
        yield self
        for inner in self.subcommands:
            yield from inner.walk()


_KINDS: Final = {
    "CONTAINER": Completes.CONTAINER,
    "CONTAINER-ID": Completes.CONTAINER_ID,
    "POD": Completes.POD,
    "POD-ID": Completes.POD_ID,
    "IMAGE": Completes.IMAGE,
    "REPOSITORY[:TAG]": Completes.IMAGE,
    "FILE": Completes.FILE,
    "CONTAINER-CONFIG": Completes.FILE,
    "POD-CONFIG": Completes.FILE,
    "DIR": Completes.DIRECTORY,
    "SOCKET": Completes.SOCKET,
    "SRC": Completes.CONTAINER_PATH,
    "DST": Completes.CONTAINER_PATH,
    "COMMAND": Completes.REMOTE,
}
"""What each metavar stands for; any other completes to nothing."""

_STATES: Final = {
    "start": Completes.CREATED_CONTAINER_ID,
    "stop": Completes.RUNNING_CONTAINER_ID,
    "checkpoint": Completes.RUNNING_CONTAINER_ID,
    "exec": Completes.RUNNING_CONTAINER_ID,
    "attach": Completes.RUNNING_CONTAINER_ID,
}
"""Commands that make sense only for containers in one state."""

_LIST_FORMATS: Final = ("json", "yaml", "table", "wide", "jsonpath=", "custom-columns=")
_FILTERS: Final = ("dangling=true", "dangling=false", "reference=", "before=", "since=")
_SORT_KEYS: Final = {
    "ps": (".metadata.name", ".metadata.attempt", ".createdAt", ".state", ".image.image", ".id"),
    "pods": (".metadata.name", ".metadata.namespace", ".createdAt", ".state", ".id"),
    "images": (".repoTags[0]", ".size", ".id"),
}

_EXAMPLE: Final = "Example: "
_CHOICES: Final = re.compile(r"[a-z-]+(\|[a-z-]+)+")
_VARIABLE: Final = re.compile(r" \[\$(\w+)\]")


@cache
def program() -> Command:
    """Return the whole tree, walked once."""
    command = typer.main.get_command(main.app)
    description = (command.help or "").split("\n\n")
    return Command(
        path=(),
        aliases=(),
        family="",
        summary=_sentence(description[0]).removesuffix("."),
        description=tuple(map(_sentence, description[1:])),
        examples=(),
        arguments=(),
        options=_options((), command),
        subcommands=tuple(_command((), entry) for entry in COMMANDS),
        is_remote=False,
    )


def _command(parent: tuple[str, ...], entry: Entry) -> Command:
    path = (*parent, entry.name)
    command = tree.build(entry, parent=" ".join(parent))
    paragraphs = [_sentence(text) for text in (command.help or "").split("\n\n")[1:]]
    return Command(
        path=path,
        aliases=entry.aliases,
        family=entry.family,
        summary=entry.summary,
        description=tuple(text for text in paragraphs if not text.startswith(_EXAMPLE)),
        examples=tuple(
            (entry.summary, text.removeprefix(_EXAMPLE))
            for text in paragraphs
            if text.startswith(_EXAMPLE)
        ),
        arguments=tuple(_arguments(path, command)),
        options=_options(path, command),
        subcommands=tuple(_command(path, inner) for inner in entry.subcommands),
        is_remote=entry.grammar is Grammar.REMOTE,
    )


def _sentence(text: str) -> str:
    return " ".join(text.split())


def _params(command: click.Command) -> list[click.Parameter]:
    # Below the root, which settles how help is asked for.
    root = typer.main.get_command(main.app)
    with root.make_context("pycrictl", [], resilient_parsing=True) as parent:
        ctx = command.make_context(command.name, [], parent=parent, resilient_parsing=True)
        return command.get_params(ctx)


def _arguments(path: tuple[str, ...], command: click.Command) -> list[Argument]:
    found = []
    for param in _params(command):
        if not isinstance(param, TyperArgument):
            continue
        # One parameter may take words of several kinds: "[CONTAINER-ID] COMMAND...".
        for word in (param.metavar or "").split(" "):
            bare = word.removesuffix("...")
            metavar = bare[1:-1] if bare.startswith("[") and bare.endswith("]") else bare
            found.append(
                Argument(
                    metavar=metavar,
                    help=_sentence(param.help or ""),
                    choices=_choices(path, metavar),
                    is_required=bare == metavar,
                    is_repeatable=word.endswith("..."),
                    completes=_completes(path, metavar),
                )
            )
    return found


def _options(path: tuple[str, ...], command: click.Command) -> tuple[Option, ...]:
    found = []
    for param in _params(command):
        if not isinstance(param, TyperOption) or param.hidden:
            continue
        names = tuple(sorted(param.opts, key=lambda name: name.startswith("--")))
        metavar = "" if param.is_flag else param.metavar or ""
        text = _sentence(param.help or "")
        variables = param.envvar or _VARIABLE.findall(text)
        found.append(
            Option(
                names=names,
                metavar=metavar,
                help=_VARIABLE.sub("", text),
                choices=_choices(path, metavar, names[-1]),
                is_switch=bool(param.is_flag),
                is_repeatable=bool(param.multiple),
                default=_default(param),
                environ=(variables,) if isinstance(variables, str) else tuple(variables),
                completes=_completes(path, metavar),
            )
        )
    return tuple(found)


def _completes(path: tuple[str, ...], metavar: str) -> Completes:
    kind = _KINDS.get(metavar, Completes.NOTHING)
    if kind is Completes.CONTAINER_ID and path:
        return _STATES.get(path[0], kind)
    return kind


def _choices(path: tuple[str, ...], metavar: str, name: str = "") -> tuple[str, ...]:
    if _CHOICES.fullmatch(metavar):
        return tuple(metavar.split("|"))
    if path == ("config",) and metavar == "KEY":
        return KEYS
    if path == ("config",) and name == "--set":
        return tuple(f"{key}=" for key in KEYS)
    if name == "--sort-by":
        return _SORT_KEYS[path[0]]
    return {"FORMAT": _LIST_FORMATS, "NAME=VALUE": _FILTERS}.get(metavar, ())


def _default(param: TyperOption) -> str:
    value: Any = param.default
    if param.is_flag or value is None or not param.show_default:
        return ""
    return format_duration(value) if param.metavar == "DURATION" else str(value)
