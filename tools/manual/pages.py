"""The man pages, made from the live command tree and the prose in man/prose.

The same sources give the same bytes, on any machine and on any day.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from pycrictl import __version__
from tools import surface
from tools.manual import prose, roff

DATE: Final = "2026-11-21"
"""Date of the pages, which mandoc requires: it changes with the version, not with the day."""

_PROGRAM: Final = "pycrictl"
_KUBECTL: Final = "kubectl"
_OVERVIEW: Final = "pycrictl.md"
_COMPAT: Final = "pycrictl-compat.md"
_SETTINGS: Final = "pycrictl.toml.md"
_BY_COMMAND: Final = "SINGLE COMMANDS"
"""The section of differences with parts by command; the page groups them by family."""

_SEE_COMPAT: Final = ("pycrictl-compat", 7)
_SEE_SETTINGS: Final = ("pycrictl.toml", 5)
_ON_NODE: Final = {"container-cp": "cp"}
"""Plugins of kubectl whose counterpart on a node has another name."""

_PLACED: Final = ("EXIT STATUS", "EXAMPLES")
"""Sections of a command's prose that do not follow its options, but come further down."""

_KEY: Final = re.compile(r"`([\w-]+)` \((.*)\)(?:, default `(.*)`)?")
_DEFAULT: Final = re.compile(r" \(default: ([^)]*)\)")
_NODE_SIDE: Final = ("proxy", "pull-limiter")

Reference = tuple[str, int]


def pages() -> dict[str, bytes]:
    program = surface.program()
    made = {
        "pycrictl.1": roff.page(_overview(program)),
        "pycrictl-compat.7": roff.page(_differences(program)),
        "pycrictl.toml.5": roff.page(_settings(program)),
    }
    for command in program.subcommands:
        made[f"{_page_name(command)}.1"] = roff.page(_command(command, program))
    for plugin in surface.plugins():
        made[f"{_page_name(plugin)}.1"] = roff.page(_command(plugin, program))
    return made


def examples(command: surface.Command) -> Iterator[tuple[str, str]]:
    """Yield all examples of a command: what each shows, if the page says so, and its line."""
    yield from (("", line) for line in command.examples)
    blocks = prose.section(_prose_of(command), "EXAMPLES").blocks
    for text, lines in zip(blocks[::2], blocks[1::2], strict=True):
        if not (isinstance(text, str) and isinstance(lines, roff.Lines)):
            raise ValueError(f"not a sentence and its command line: {text}, {lines}")
        (line,) = lines.lines
        yield text.removesuffix(":"), line


def keys() -> Iterator[tuple[str, str, str, str]]:
    """Yield each key of pycrictl.toml: its name, its type, its default in TOML, and a text.

    The default is empty if there is none, the text if the help of the option of the same name is
    enough.
    """
    for block in prose.section(_SETTINGS, "KEYS").blocks:
        for head, text in block.items if isinstance(block, roff.Terms) else ():
            if not (key := _KEY.fullmatch(head)):
                raise ValueError(f"not a key, its type and its default: {head}")
            yield key[1], key[2], key[3] or "", text


def differences(command: surface.Command) -> tuple[roff.Point, ...]:
    """Return a command's differences from crictl, from all headings that name it."""
    name = " ".join(command.path)
    return tuple(
        point
        for part in prose.section(_COMPAT, _BY_COMMAND).parts
        if name in part.title.split(", ")
        for block in part.blocks
        if isinstance(block, roff.Points)
        for point in block.items
    )


def _overview(program: surface.Command) -> Iterator[str]:
    yield from _head("pycrictl", 1)
    yield from _name("pycrictl", program.summary)
    yield roff.heading("SYNOPSIS")
    yield rf"{roff.bold(_PROGRAM)} [{roff.italic('OPTION')}]... {roff.italic('COMMAND')} [...]"
    description, *others = prose.read(_OVERVIEW)
    yield from _written(description)
    yield roff.heading("GLOBAL OPTIONS")
    for group in dict.fromkeys(option.group for option in program.options):
        if group:
            yield roff.subheading(group)
        yield from _options(option for option in program.options if option.group == group)
    yield from _section("COMMANDS", "Each command has its own page, such as pycrictl-ps(1).")
    for family in dict.fromkeys(command.family for command in program.subcommands):
        yield roff.subheading(family)
        for command in program.subcommands:
            if command.family == family:
                names = ", ".join(f"`{name}`" for name in (command.name, *command.aliases))
                yield from roff.term(roff.inline(names), f"{command.summary}.")
    for section in others:
        yield from _written(section)
    own = [(_page_name(command), 1) for command in program.subcommands]
    yield from _see_also([*sorted(own), _SEE_SETTINGS, _SEE_COMPAT])


def _command(command: surface.Command, program: surface.Command) -> Iterator[str]:
    yield from _head(_page_name(command), 1)
    yield from _name(_page_name(command), command.summary)
    yield roff.heading("SYNOPSIS")
    for index, described in enumerate((command, *command.subcommands)):
        if index:
            yield ".br"
        yield _synopsis(described)
    yield from _section("DESCRIPTION", *_description(command))
    yield from _parameters(command, roff.heading)
    for inner in command.subcommands:
        yield from _section(" ".join(inner.path).upper(), *_description(inner))
        yield from _parameters(inner, roff.subheading)
    for section in prose.read(_prose_of(command)):
        if section.title not in _PLACED:
            yield from _written(section)
    yield from _exit_status(command)
    shown: list[roff.Block] = []
    for described in (command, *command.subcommands):
        for text, line in examples(described):
            shown += [f"{text}:"] * bool(text) + [roff.Lines((line,))]
    yield from _section("EXAMPLES", *shown)
    has_differences = any(map(differences, command.walk()))
    if has_differences and command not in surface.plugins():
        yield from _section("COMPATIBILITY", "Differences from crictl: see pycrictl-compat(7).")
    yield from _see_also(_related(command, program))


def _description(command: surface.Command) -> Iterator[str]:
    yield f"{command.summary}."
    yield from command.description
    if command.aliases:
        yield f"Also called {', '.join(f'`{name}`' for name in command.aliases)}."


def _synopsis(command: surface.Command) -> str:
    program = _KUBECTL if command in surface.plugins() else _PROGRAM
    words = [roff.bold(" ".join((program, *command.path)))]
    if command.options:
        words.append(rf"[{roff.italic('OPTION')}]...")
    for argument in command.arguments:
        name = roff.italic(argument.metavar)
        if argument.choices and "|" in argument.metavar:
            name = "|".join(map(roff.bold, argument.choices))
        name = name if argument.is_required else f"[{name}]"
        is_marked = "..." in argument.metavar  # where several words are one list
        words.append(f"{name}..." if argument.is_repeatable and not is_marked else name)
    return " ".join(words)


def _parameters(command: surface.Command, title: Callable[[str], str]) -> Iterator[str]:
    if command.arguments:
        yield title("ARGUMENTS")
    # Several words may belong to one parameter, and share its text.
    for text in dict.fromkeys(argument.help for argument in command.arguments):
        names = [
            roff.italic(argument.metavar) for argument in command.arguments if argument.help == text
        ]
        yield from roff.term(" ".join(names), text)
    yield title("OPTIONS")
    yield from _options(command.options)


def _options(options: Iterable[surface.Option]) -> Iterator[str]:
    for option in options:
        names = ", ".join(map(roff.bold, option.names))
        head = f"{names} {roff.italic(option.metavar)}" if option.metavar else names
        yield from roff.term(head, " ".join(_option_text(option)))


def _option_text(option: surface.Option) -> Iterator[str]:
    yield option.help
    if option.default and option.default not in ("0", "0s", "-1") and "default" not in option.help:
        yield f"The default is `{option.default}`."
    for variable in option.environ:
        yield f"Environment variable: `{variable}`."


def _exit_status(command: surface.Command) -> Iterator[str]:
    if blocks := prose.section(_prose_of(command), "EXIT STATUS").blocks:
        yield from _section("EXIT STATUS", *blocks, "For all other statuses, see pycrictl(1).")
    else:
        text = "0 on success, 1 on an error. For all other statuses, see pycrictl(1)."
        yield from _section("EXIT STATUS", text)


def _related(command: surface.Command, program: surface.Command) -> list[Reference]:
    pages_beside = [("pycrictl", 1)]
    if command in surface.plugins():
        on_node = _ON_NODE.get(command.name, command.name)
        return [*pages_beside, (f"{_PROGRAM}-{on_node}", 1), ("pycrictl-agent", 1)]
    pages_beside += sorted(
        (_page_name(other), 1)
        for other in program.subcommands
        if other.family == command.family and other.path != command.path
    )
    if command.name in _NODE_SIDE:
        pages_beside.append(_SEE_SETTINGS)
    return [*pages_beside, _SEE_COMPAT]


def _differences(program: surface.Command) -> Iterator[str]:
    yield from _head("pycrictl-compat", 7)
    for section in prose.read(_COMPAT):
        if section.title == _BY_COMMAND:
            yield from _differences_by_command(program)
        else:
            yield from _written(section)
    yield from _see_also([("pycrictl", 1)])


def _differences_by_command(program: surface.Command) -> Iterator[str]:
    commands = [command for command in program.walk() if differences(command)]
    for family in dict.fromkeys(command.family for command in commands):
        yield roff.heading(family.upper())
        for command in commands:
            if command.family == family:
                yield roff.subheading(" ".join(command.path))
                yield from roff.part((roff.Points(differences(command)),))


def _settings(program: surface.Command) -> Iterator[str]:
    (proxy,) = (command for command in program.subcommands if command.name == "proxy")
    help_of = {option.names[-1]: option.help for option in proxy.options}
    yield from _head("pycrictl.toml", 5)
    for section in prose.read(_SETTINGS):
        if section.title != "KEYS":
            yield from _written(section)
            continue
        yield roff.heading(section.title)
        for name, kind, default, text in keys():
            # The help describes the default, the page shows it as it is written in the file.
            described = _DEFAULT.search(help_of[f"--{name}"])
            value = (default or "").strip('"')
            meaning = described[1].removeprefix(value) if described and default else ""
            if meaning and not value:
                meaning = f", {meaning}"
            words = [_DEFAULT.sub("", help_of[f"--{name}"]), text]
            words.append(f"The default is `{default}`{meaning}." if default else "")
            words.append(f"Option: `--{name}`.")
            head = rf"{roff.bold(name)} ({roff.literal(kind)})"
            yield from roff.term(head, " ".join(filter(None, words)))
    yield from _see_also([("pycrictl", 1), ("pycrictl-proxy", 1), ("pycrictl-pull-limiter", 1)])


def _head(name: str, section: int) -> Iterator[str]:
    yield r'.\" Made by "make generate": change its sources, not this file.'
    release = __version__.partition(".dev")[0]
    yield from roff.title(name, section, date=DATE, source=f"pycrictl {release}")


def _name(name: str, summary: str) -> Iterator[str]:
    yield from _section("NAME", f"{name} - {summary[:1].lower()}{summary[1:]}")


def _written(section: prose.Section) -> Iterator[str]:
    yield from _section(section.title, *section.blocks)
    for part in section.parts:
        yield roff.subheading(part.title)
        yield from roff.part(part.blocks)


def _section(title: str, *blocks: roff.Block) -> Iterator[str]:
    yield roff.heading(title)
    yield from roff.part(blocks)


def _see_also(references: Iterable[Reference]) -> Iterator[str]:
    yield roff.heading("SEE ALSO")
    listed = list(references)
    for index, (name, section) in enumerate(listed, start=1):
        comma = "," if index < len(listed) else ""
        yield rf".BR {roff.literal(name)} ({section}){comma}"


def _page_name(command: surface.Command) -> str:
    if command in surface.plugins():
        return f"{_KUBECTL}-{command.name.replace('-', '_')}"
    return "-".join((_PROGRAM, *command.path))


def _prose_of(command: surface.Command) -> str:
    return f"{_page_name(command)}.md"
