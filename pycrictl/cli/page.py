"""Pages of help, written from the declarations: in the program's own form, or in that of crictl.

Typer is not asked for them: its import takes longer than everything else that ``--help`` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, NamedTuple

from pycrictl.cli import crictl, declare, program
from pycrictl.cli.declare import Argument, Option, Parameter, parameters
from pycrictl.cli.table import COMMANDS, Entry
from pycrictl.environ import terminal_size

if TYPE_CHECKING:
    from pycrictl.cli.context import AppContext

Row = tuple[str, str]
Block = tuple[str, Sequence[Row | str]]
"""A heading, which may be empty, and what stands below: rows of two columns, or paragraphs."""

HELP: Final = Parameter(
    "help",
    bool,
    Option(*declare.HELP, help="Show this message and exit.", show_default=False),
    False,
)
_HELP_WORD: Final = ("help, h", "Show a page of help")


class _Look(NamedTuple):
    """The margin, and the most columns of what is beside it and of the first of two columns."""

    margin: str
    width: int
    first: int


_CRICTLS: Final = _Look("   ", 10_000, 10_000)


def show(app: AppContext, entry: Entry | None = None) -> None:
    """Write the page of a command, or of the program, to standard output."""
    found = [*parameters(entry.load() if entry else program.set_globals), HELP]
    if crictl.is_called():
        blocks, look = _as_crictl(app.path, entry, found), _CRICTLS
    else:
        columns = terminal_size(app.env.stdout, app.env.environ)[0]
        blocks, look = _as_itself(app.path, entry, found), _Look("  ", min(columns, 80) - 4, 30)
    text = "\n\n".join(_set(*block, look) for block in blocks if block[1])
    app.env.stdout.write(f"{text}\n")


def _as_itself(path: str, entry: Entry | None, found: Sequence[Parameter]) -> Iterator[Block]:
    yield (
        f"Usage: {path} [OPTIONS]{_words(found) if entry else ' COMMAND [ARGS]...'}\n",
        _texts(path, entry),
    )
    yield "Arguments:", [_row(each) for each in found if isinstance(each.declared, Argument)]
    yield "Options:", [_row(each) for each in found if isinstance(each.declared, Option)]
    if entry:
        yield "Commands:", [_listed(each) for each in entry.subcommands]
        yield "", [f"Also called: {', '.join(entry.aliases)}."] if entry.aliases else []
        return
    for family in dict.fromkeys(each.family for each in COMMANDS):
        yield f"{family}:", [_listed(each) for each in COMMANDS if each.family == family]
    yield "", [f"Run '{path} COMMAND --help' for a command's options."]


def _as_crictl(path: str, entry: Entry | None, found: Sequence[Parameter]) -> Iterator[Block]:
    options = [_crictls_row(each) for each in found if isinstance(each.declared, Option)]
    if entry is None:
        yield "NAME:", [crictl.TITLE]
        yield "USAGE:", [f"{path} [global options] command [command options]"]
        yield "VERSION:", [crictl.VERSION]
        yield "COMMANDS:", [*sorted(map(_listed, COMMANDS)), _HELP_WORD]
        yield "GLOBAL OPTIONS:", options
        return
    summary, *texts = _texts(path, entry)
    yield "NAME:", [f"{path} - {crictl.SUMMARIES.get(entry.name, summary)}"]
    yield "USAGE:", [f"{path} [command options]{_words(found)}"]
    yield "COMMANDS:", [*map(_listed, entry.subcommands), _HELP_WORD]
    yield "OPTIONS:", options
    yield "DESCRIPTION:", [text.replace("pycrictl ", f"{crictl.NAME} ") for text in texts]


def _texts(path: str, entry: Entry | None) -> list[str]:
    return entry.texts(parent=" ".join(path.split()[1:-1])) if entry else [program.HELP]


def _words(found: Sequence[Parameter]) -> str:
    declared = [each.declared for each in found]
    return "".join(f" {each.metavar}" for each in declared if isinstance(each, Argument))


def _listed(entry: Entry) -> Row:
    return ", ".join(entry.names), entry.summary


def _row(each: Parameter) -> Row:
    declared, name, beside = each.declared, each.declared.metavar or "", []
    if isinstance(declared, Option):
        name = f"{', '.join(declared.spellings)} {name}".rstrip()
        if declared.envvar:
            beside.append(f"env var: {declared.envvar}")
    if (default := each.shown_default) is not None and not each.is_switch:
        beside.append(f"default: {default}")
    if each.default is ...:
        beside.append("required")
    return name, f"{declared.help}  [{'; '.join(beside)}]" if beside else declared.help


def _crictls_row(each: Parameter) -> Row:
    assert isinstance(each.declared, Option)
    value = "" if each.is_switch else " value"
    names = sorted(each.declared.names, key=len, reverse=True)
    name = ", ".join(f"{spelling}{value}" for spelling in names)
    if each.is_list:
        name += f" [ {name} ]"
    if (default := each.shown_default) is None:
        return name, each.declared.help
    if isinstance(default, str):
        default = f'"{default}"'
    return name, f"{each.declared.help} (default: {str(default).lower()})"


def _set(heading: str, content: Sequence[Row | str], look: _Look) -> str:
    """Return a block as lines; rows whose first column is too wide have their text below it."""
    names = [each[0] for each in content if not isinstance(each, str)]
    first = min(max(map(len, names), default=0), look.first)
    lines: list[str] = []
    for each in content:
        if isinstance(each, str):
            lines += [*(("",) if lines else ()), *_filled(each, look.width)]
            continue
        name, text = each
        if len(name) > first:
            lines.append(name)
            name = ""
        for piece, line in zip_longest([name], _filled(text, look.width - first - 2), fillvalue=""):
            lines.append(f"{piece:{first}}  {line}")
    return "\n".join(
        ([heading] if heading else []) + [f"{look.margin}{line}".rstrip() for line in lines]
    )


def _filled(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split(" "):
        if len(lines[-1]) + len(word) < width or not lines[-1]:
            lines[-1] += f" {word}" if lines[-1] else word
        elif word:
            lines.append(word)
    return lines
