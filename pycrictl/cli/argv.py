"""crictl's command line grammar: from words as typed to unambiguous ones. Pure.

crictl parses with the rules of Go's flag package, which differ from getopt's: ``-name x`` is
``--name x``; booleans never take the next word but may be written ``--all=false``; a repeated
scalar option is not an error, the last one wins; short options may be bundled where every letter is
an option. The options are given as plain data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from pycrictl.errors import OptionError
from pycrictl.units import parse_bool


class OptionSpec(NamedTuple):
    canonical: str
    is_switch: bool = False
    is_repeatable: bool = False


class CommandLine(NamedTuple):
    """A parsed command line.

    Attributes:
        options: canonical words, each option one word (``--name=value`` or ``--switch``).
        positionals: everything else, in order.
        negated: canonical spellings of switches that were explicitly given as false.
        typed: for each option with a value, by its canonical spelling: the spelling that was typed,
            without dashes, and the last value.
    """

    options: list[str]
    positionals: list[str]
    negated: set[str]
    typed: dict[str, tuple[str, str]]


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
    line = CommandLine([], [], set(), {})
    switches: dict[str, bool] = {}
    scalars: dict[str, str] = {}
    position = 0
    while position < len(args):
        word = args[position]
        position += 1
        if word == "--":
            line.positionals.extend(args[position:])
            break
        if len(word) < 2 or not word.startswith("-"):
            line.positionals.append(word)
            if interspersed:
                continue
            line.positionals.extend(args[position:])
            break
        for name, value in _split(word, options, attached=attached):
            option = options.get(name)
            if option is None:
                raise _unknown(word, name, options)
            if option.is_switch:
                switches[option.canonical] = _boolean(name, value)
                continue
            if value is None:
                if position == len(args):
                    raise OptionError(
                        f'option "{dashed(name)}" needs a value',
                        flag_error=f"flag needs an argument: -{name}",
                    )
                value = args[position]
                position += 1
            line.typed[option.canonical] = (name, value)
            if option.is_repeatable:
                line.options.append(f"{option.canonical}={value}")
            else:
                scalars[option.canonical] = value
    line.options.extend(f"{name}={value}" for name, value in scalars.items())
    line.options.extend(name for name, is_on in switches.items() if is_on)
    line.negated.update(name for name, is_on in switches.items() if not is_on)
    return line


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
