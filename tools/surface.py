"""The command tree as plain data, for what is made of it: completions and man pages.

The walk imports every command, so no command does it. The metavar of a word says what the word
completes to, so a metavar stands for one kind of thing everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from typing import Final

from pycrictl.cli import declare, page
from pycrictl.cli.plugins import PLUGINS
from pycrictl.cli.program import HELP, set_globals
from pycrictl.cli.table import COMMANDS, Entry, Grammar
from pycrictl.config import KEYS
from pycrictl.show import headings
from pycrictl.units import format_duration


class Completes(Enum):
    """What a word can be."""

    NOTHING = auto()
    CONTAINER = auto()
    CREATED_CONTAINER = auto()
    RUNNING_CONTAINER = auto()
    CONTAINER_PATH = auto()
    """A local path, or ``CONTAINER:PATH``."""
    POD = auto()
    LOG = auto()
    """A container, or a pod for all of its containers."""
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
    "POD": Completes.POD,
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
    "start": Completes.CREATED_CONTAINER,
    "stop": Completes.RUNNING_CONTAINER,
    "checkpoint": Completes.RUNNING_CONTAINER,
    "exec": Completes.RUNNING_CONTAINER,
    "attach": Completes.RUNNING_CONTAINER,
    "logs": Completes.LOG,
}
"""Commands that make sense only for containers in one state, or for pods as well."""

_LIST_FORMATS: Final = ("json", "yaml", "table", "wide", "jsonpath=", "custom-columns=")
_FILTERS: Final = ("dangling=true", "dangling=false", "reference=", "before=", "since=")
_SORT_KEYS: Final = {
    "ps": headings.CONTAINERS,
    "pods": headings.PODS,
    "images": headings.IMAGES,
    "stats": (*headings.CONTAINER_STATS, "cpu"),
    "statsp": (*headings.POD_STATS, "cpu"),
    "pull-limiter": headings.PULLS,
}

_EXAMPLE: Final = "Example: "
_CHOICES: Final = re.compile(r"[a-z-]+(=[A-Z]+)?(\|[a-z-]+(=[A-Z]+)?)+")
_VARIABLE: Final = re.compile(r" \[\$(\w+)\]")


@cache
def program() -> Command:
    """Return the whole tree, walked once."""
    return Command(
        path=(),
        aliases=(),
        family="",
        summary=HELP.removesuffix("."),
        description=(),
        examples=(),
        arguments=(),
        options=tuple(_options((), declare.parameters(set_globals))),
        subcommands=tuple(_command((), entry) for entry in COMMANDS),
        is_remote=False,
    )


@cache
def plugins() -> tuple[Command, ...]:
    """Return the plugins of kubectl; their paths are without "kubectl"."""
    return tuple(_command((), entry) for entry in PLUGINS)


def _command(parent: tuple[str, ...], entry: Entry) -> Command:
    path = (*parent, entry.name)
    found = declare.parameters(entry.load())
    texts = entry.texts(parent=" ".join(parent))[1:]
    return Command(
        path=path,
        aliases=entry.aliases,
        family=entry.family,
        summary=entry.summary,
        description=tuple(text for text in texts if not text.startswith(_EXAMPLE)),
        examples=tuple(
            (entry.summary, text.removeprefix(_EXAMPLE))
            for text in texts
            if text.startswith(_EXAMPLE)
        ),
        arguments=tuple(_arguments(path, found)),
        options=tuple(_options(path, found)),
        subcommands=tuple(_command(path, inner) for inner in entry.subcommands),
        is_remote=entry.grammar is Grammar.REMOTE,
    )


def _arguments(path: tuple[str, ...], found: Iterable[declare.Parameter]) -> Iterator[Argument]:
    for each in found:
        if not isinstance(each.declared, declare.Argument):
            continue
        # One parameter may take words of several kinds: "[CONTAINER-ID] COMMAND...".
        for word in each.declared.metavar.split(" "):
            bare = word.removesuffix("...")
            metavar = bare[1:-1] if bare.startswith("[") and bare.endswith("]") else bare
            yield Argument(
                metavar=metavar,
                help=each.declared.help,
                choices=_choices(path, metavar),
                is_required=bare == metavar,
                is_repeatable=word.endswith("..."),
                completes=_completes(path, metavar),
            )


def _options(path: tuple[str, ...], found: Iterable[declare.Parameter]) -> Iterator[Option]:
    for each in (*found, page.HELP):
        if not isinstance(each.declared, declare.Option):
            continue
        names, metavar = each.declared.spellings, each.declared.metavar or ""
        variable = each.declared.envvar
        yield Option(
            names=names,
            metavar=metavar,
            help=_VARIABLE.sub("", each.declared.help),
            choices=_choices(path, metavar, names[-1]),
            is_switch=each.is_switch,
            is_repeatable=each.is_list,
            default=_default(each, metavar),
            environ=tuple([variable] if variable else _VARIABLE.findall(each.declared.help)),
            completes=_completes(path, metavar),
        )


def _completes(path: tuple[str, ...], metavar: str) -> Completes:
    kind = _KINDS.get(metavar, Completes.NOTHING)
    if kind is Completes.CONTAINER and path:
        return _STATES.get(path[0], kind)
    return kind


def _choices(path: tuple[str, ...], metavar: str, name: str = "") -> tuple[str, ...]:
    if _CHOICES.fullmatch(metavar):
        return tuple(re.sub("[A-Z]+$", "", choice) for choice in metavar.split("|"))
    if path == ("config",) and metavar == "KEY":
        return KEYS
    if path == ("config",) and name == "--set":
        return tuple(f"{key}=" for key in KEYS)
    if name == "--sort-by":
        return tuple(key for key in _SORT_KEYS[path[0]] if " " not in key)
    return {"FORMAT": _LIST_FORMATS, "NAME=VALUE": _FILTERS}.get(metavar, ())


def _default(parameter: declare.Parameter, metavar: str) -> str:
    value = parameter.shown_default
    if parameter.is_switch or value is None:
        return ""
    return format_duration(value) if metavar == "DURATION" else str(value)
