"""The man pages, made of the live command tree and of the handwritten parts in ``cli.manual``.

The same sources give the same bytes, on any machine and on any day.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from pycrictl import __version__
from pycrictl.cli import surface
from pycrictl.cli.manual import commands, compat, compat_commands, overview, roff, toml

DATE: Final = "2026-11-21"
"""Of the pages, which mandoc wants to know: to be changed with the version, not with the day."""

_PROGRAM: Final = "pycrictl"
_COMPAT: Final = ("pycrictl-compat", 7)
_TOML: Final = ("pycrictl.toml", 5)
_DEFAULT: Final = re.compile(r" \(default[^)]*\)")
_NODE_SIDE: Final = ("proxy", "pull-limiter")

Reference = tuple[str, int]


def pages() -> dict[str, bytes]:
    """All pages by their files' names."""
    program = surface.program()
    found = {
        "pycrictl.1": roff.page(_overview(program)),
        "pycrictl-compat.7": roff.page(_differences(program)),
        "pycrictl.toml.5": roff.page(_settings(program)),
    }
    for command in program.subcommands:
        found[f"{_page_name(command)}.1"] = roff.page(_command(command, program))
    return found


def examples(command: surface.Command) -> tuple[tuple[str, str], ...]:
    """All examples of a command: what each does, and its command line."""
    return command.examples + commands.EXAMPLES.get(" ".join(command.path), ())


def _overview(program: surface.Command) -> Iterator[str]:
    yield from _head("pycrictl", 1, program.summary)
    yield roff.heading("SYNOPSIS")
    yield rf"{roff.bold(_PROGRAM)} [{roff.italic('OPTION')}]... {roff.italic('COMMAND')} [...]"
    yield from _section("DESCRIPTION", *overview.DESCRIPTION)
    yield roff.heading("GLOBAL OPTIONS")
    yield from _options(program.options)
    yield from _section("COMMANDS", "Each has a page of its own, such as pycrictl-ps(1).")
    for family in dict.fromkeys(command.family for command in program.subcommands):
        yield roff.subheading(family)
        for command in program.subcommands:
            if command.family == family:
                names = ", ".join(f"`{name}`" for name in (command.name, *command.aliases))
                yield from roff.term(roff.inline(names), f"{command.summary}.")
    for part in (overview.GRAMMAR, overview.CONFIGURATION):
        yield from _section(part.title, *part.blocks)
    yield from _section("ENVIRONMENT", roff.Terms(overview.ENVIRONMENT))
    yield from _section("FILES", roff.Terms(overview.FILES))
    yield from _section("EXIT STATUS", roff.Terms(overview.EXIT_STATUS), overview.EXEC_STATUS)
    yield from _section(overview.DIAGNOSTICS.title, *overview.DIAGNOSTICS.blocks)
    yield from _section("STANDARDS", overview.STANDARDS)
    own = [(_page_name(command), 1) for command in program.subcommands]
    yield from _see_also([*sorted(own), _TOML, _COMPAT])


def _command(command: surface.Command, program: surface.Command) -> Iterator[str]:
    yield from _head(_page_name(command), 1, command.summary)
    yield roff.heading("SYNOPSIS")
    for index, one in enumerate((command, *command.subcommands)):
        if index:
            yield ".br"
        yield _synopsis(one)
    yield from _section("DESCRIPTION", *_description(command))
    yield from _parameters(command, roff.heading)
    for inner in command.subcommands:
        yield from _section(" ".join(inner.path).upper(), *_description(inner))
        yield from _parameters(inner, roff.subheading)
    for part in commands.PARTS.get(command.name, ()):
        yield from _section(part.title, *part.blocks)
    yield from _exit_status(command)
    shown: list[roff.Block] = []
    for one in (command, *command.subcommands):
        for what, line in examples(one):
            shown += [f"{what}:", roff.Lines((line,))]
    yield from _section("EXAMPLES", *shown)
    if any(command.name == name.split()[0] for name in compat_commands.COMMANDS):
        text = "What this command does otherwise than that of crictl is in pycrictl-compat(7)."
        yield from _section("COMPATIBILITY", text)
    yield from _see_also(_related(command, program))


def _description(command: surface.Command) -> Iterator[str]:
    yield f"{command.summary}."
    yield from command.description
    if command.aliases:
        yield f"Other names: {', '.join(f'`{name}`' for name in command.aliases)}."


def _synopsis(command: surface.Command) -> str:
    words = [roff.bold(" ".join((_PROGRAM, *command.path)))]
    if command.options:
        words.append(rf"[{roff.italic('OPTION')}]...")
    for argument in command.arguments:
        name = roff.italic(argument.metavar)
        if "|" in argument.metavar:
            name = "|".join(map(roff.bold, argument.choices))
        name = name if argument.is_required else f"[{name}]"
        words.append(f"{name}..." if argument.is_repeatable else name)
    return " ".join(words)


def _parameters(command: surface.Command, title: Callable[[str], str]) -> Iterator[str]:
    if command.arguments:
        yield title("ARGUMENTS")
        told = ""
        for argument in command.arguments:
            # Several words may belong to one parameter, and share its text.
            if argument.help == told:
                continue
            told = argument.help
            names = [
                roff.italic(other.metavar)
                for other in command.arguments
                if other.help == argument.help
            ]
            yield from roff.term(" ".join(names), argument.help)
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
        yield f"Also from the variable `{variable}`."


def _exit_status(command: surface.Command) -> Iterator[str]:
    told = commands.EXIT_STATUS.get(command.name)
    if told is None:
        text = "0 on success, 1 on an error; all others are in pycrictl(1)."
        yield from _section("EXIT STATUS", text)
    else:
        yield from _section("EXIT STATUS", roff.Terms(told), "All others are in pycrictl(1).")


def _related(command: surface.Command, program: surface.Command) -> list[Reference]:
    found = [("pycrictl", 1)]
    found += sorted(
        (_page_name(other), 1)
        for other in program.subcommands
        if other.family == command.family and other.path != command.path
    )
    if command.name in _NODE_SIDE:
        found.append(_TOML)
    return [*found, _COMPAT]


def _differences(program: surface.Command) -> Iterator[str]:
    yield from _head(*_COMPAT, "what pycrictl does otherwise than crictl")
    yield from _section(
        "DESCRIPTION",
        "pycrictl(1) has the commands, options, variables, output formats and the configuration"
        " file of crictl 1.36. It is meant to take its place in hands and scripts. This page has"
        " every difference that is deliberate; whatever else differs is a mistake.",
    )
    yield roff.heading("ALL COMMANDS")
    for subject, differences in compat.GENERAL.items():
        yield roff.subheading(subject)
        yield from _points(differences)
    for family in dict.fromkeys(command.family for command in program.subcommands):
        named = [command for command in _walk(program) if command.family == family]
        titles = [" ".join(command.path) for command in named]
        told = [title for title in titles if title in compat_commands.COMMANDS]
        if told:
            yield roff.heading(family.upper())
        for title in told:
            yield roff.subheading(title)
            yield from _points(compat_commands.COMMANDS[title])
    yield from _section("COMMANDS THAT CRICTL LACKS", roff.Terms(compat.ADDED))
    yield from _see_also([("pycrictl", 1)])


def _points(differences: Iterable[compat.Difference]) -> Iterator[str]:
    yield from roff.part((roff.Points(tuple(" ".join(each) for each in differences)),))


def _settings(program: surface.Command) -> Iterator[str]:
    (proxy,) = (command for command in program.subcommands if command.name == "proxy")
    options = {option.names[-1].removeprefix("--"): option for option in proxy.options}
    yield from _head(*_TOML, "settings of pycrictl proxy")
    yield from _section("SYNOPSIS", "`/etc/pycrictl.toml`")
    yield from _section("DESCRIPTION", *toml.DESCRIPTION)
    yield roff.heading("KEYS")
    for name, key in toml.KEYS.items():
        default = f"The default is `{key.default}`." if key.default else ""
        head = rf"{roff.bold(name)} ({roff.literal(key.kind)})"
        # The help tells the default in its own words, the page as it is written in the file.
        told = _DEFAULT.sub("", options[name].help)
        option = f"Option `--{name}`."
        yield from roff.term(head, " ".join(filter(None, (told, key.more, default, option))))
    yield from _section(
        "EXAMPLES",
        "Three pulls at once, and whoever finds no slot looks again:",
        roff.Lines(toml.EXAMPLE),
        "The limit of kubelet:",
        roff.Lines(toml.EXAMPLE_OF_KUBELET),
    )
    yield from _section(toml.KUBELET.title, *toml.KUBELET.blocks)
    yield from _see_also([("pycrictl", 1), ("pycrictl-proxy", 1), ("pycrictl-pull-limiter", 1)])


def _head(name: str, section: int, summary: str) -> Iterator[str]:
    yield r'.\" Made by "make generate": change its sources, not this file.'
    release = __version__.partition(".dev")[0]
    yield from roff.title(name, section, date=DATE, source=f"pycrictl {release}")
    yield from _section("NAME", f"{name} - {summary[:1].lower()}{summary[1:]}")


def _section(title: str, *blocks: roff.Block) -> Iterator[str]:
    yield roff.heading(title)
    yield from roff.part(blocks)


def _see_also(references: Iterable[Reference]) -> Iterator[str]:
    yield roff.heading("SEE ALSO")
    found = list(references)
    for index, (name, section) in enumerate(found, start=1):
        comma = "," if index < len(found) else ""
        yield rf".BR {roff.literal(name)} ({section}){comma}"


def _page_name(command: surface.Command) -> str:
    return f"{_PROGRAM}-{command.name}"


def _walk(command: surface.Command) -> Iterator[surface.Command]:
    for inner in command.subcommands:
        yield inner
        yield from _walk(inner)
