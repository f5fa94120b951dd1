"""crictl's command line grammar: from words as typed to values of options. Pure.

crictl parses with the rules of Go's flag package, which differ from getopt's: ``-name x`` is
``--name x``; booleans never take the next word but may be written ``--all=false``; a repeated
scalar option is not an error, the last one wins; short options may be bundled where every letter is
an option. The options are given as plain data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from pycrictl.base.errors import OptionError
from pycrictl.base.units import parse_bool


class OptionSpec(NamedTuple):
    """An option; its ``name`` is that of the command's parameter."""

    name: str
    is_switch: bool = False
    is_repeatable: bool = False


class CommandLine(NamedTuple):
    """A parsed command line.

    Attributes:
        values: the options by name: True or False for switches, all texts of a repeatable option,
            the last text of any other.
        spellings: how each option was spelled, without dashes, in order.
        positionals: everything else, in order.
        topics: those positionals that follow ``--help``.
    """

    values: dict[str, Any]
    spellings: dict[str, list[str]]
    positionals: list[str]
    topics: list[str]


def parse(
    args: Sequence[str],
    options: Mapping[str, OptionSpec],
    *,
    interspersed: bool,
    attached: bool = False,
) -> CommandLine:
    """Parse the words after a command's name.

    Args:
        options: maps every spelling without dashes (``name``, ``n``) to its option.
        interspersed: whether options may follow positionals. Where they may not (``exec``), the
            first positional ends all parsing and the rest is passed on untouched, ``--`` included.
        attached: whether a short option may be followed by its value, as in kubectl: ``-nshop``.
    """
    line = CommandLine({}, {}, [], [])
    words = iter(args)
    for word in words:
        if word == "--" or len(word) < 2 or not word.startswith("-"):
            rest = [] if word == "--" else [word]
            if word == "--" or not interspersed:
                rest += words
            line.positionals.extend(rest)
            line.topics.extend(rest if line.values.get("help") else ())
            continue
        for name, value in _split(word, options, attached=attached):
            option = options.get(name)
            if option is None:
                raise _unknown(word, name, options)
            line.spellings.setdefault(option.name, []).append(name)
            if option.is_switch:
                line.values[option.name] = _boolean(name, value)
                continue
            value = next(words, None) if value is None else value
            if value is None:
                raise OptionError(
                    f'option "{dashed(name)}" needs a value',
                    flag_error=f"flag needs an argument: -{name}",
                )
            if option.is_repeatable:
                line.values.setdefault(option.name, []).append(value)
            else:
                line.values[option.name] = value
    return line


def words_of(line: CommandLine) -> list[tuple[str, str]]:
    """Return each option of a line with its name: one word, which means the same to ``parse``."""
    words = []
    for name, value in line.values.items():
        spelling = dashed(line.spellings[name][-1])
        for item in value if isinstance(value, list) else [value]:
            text = str(item).lower() if isinstance(item, bool) else item
            words.append((name, f"{spelling}={text}"))
    return words


def _split(
    word: str, options: Mapping[str, OptionSpec], *, attached: bool
) -> list[tuple[str, str | None]]:
    name, equals, value = word.lstrip("-").partition("=")
    given = value if equals else None
    is_bundle = not word.startswith("--") and name not in options and len(name) > 1
    first = options.get(name[:1]) if is_bundle and attached else None
    if first is not None and not first.is_switch:
        return [(name[0], word[2:])]
    if is_bundle and all(letter in options for letter in name):
        return [*((letter, None) for letter in name[:-1]), (name[-1], given)]
    return [(name, given)]


def _boolean(name: str, value: str | None) -> bool:
    if value is None:
        return True
    try:
        return parse_bool(value)
    except ValueError as exc:
        raise OptionError(
            f'option "{dashed(name)}": {exc}',
            flag_error=f'invalid boolean value "{value}" for -{name}: parse error',
        ) from None


def dashed(name: str) -> str:
    return f"-{name}" if len(name) == 1 else f"--{name}"


def _unknown(word: str, name: str, options: Mapping[str, OptionSpec]) -> OptionError:
    near = get_close_matches(name, options, n=1)
    hint = f"did you mean {dashed(near[0])}?" if near else None
    message = f'unknown option "{word.partition("=")[0]}"'
    return OptionError(message, flag_error=f"flag provided but not defined: -{name}", hint=hint)
