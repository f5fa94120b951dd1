"""crictl's command line grammar: from words as typed to values of Typer's options. Pure.

crictl parses with the rules of Go's flag package, which differ from getopt's: ``-name x`` is
``--name x``; booleans never take the next word but may be written ``--all=false``; a repeated
scalar option is not an error, the last one wins; short options may be bundled where every letter is
an option.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

from typer.core import TyperOption

from pycrictl.base.errors import OptionError
from pycrictl.base.units import parse_bool

if TYPE_CHECKING:
    from typer._click import Parameter


class CommandLine(NamedTuple):
    """A parsed command line.

    Attributes:
        values: options by the names of their parameters: True or False for switches, all texts of a
            repeatable option, the last text of any other.
        spellings: how each option was spelled, without dashes, in order.
        positionals: everything else, in order.
        topics: the positionals that follow ``--help``.
    """

    values: dict[str, Any]
    spellings: dict[str, list[str]]
    positionals: list[str]
    topics: list[str]

    def words(self) -> Iterator[tuple[str, str]]:
        """Yield each option's name, and the option as one word that ``parse`` reads as the same."""
        for name, value in self.values.items():
            for item in value if isinstance(value, list) else [value]:
                text = str(item).lower() if isinstance(item, bool) else item
                yield name, f"{dashed(self.spellings[name][-1])}={text}"


def by_spelling(parameters: Iterable[Parameter]) -> dict[str, TyperOption]:
    """Return the options among parameters by all their spellings without dashes."""
    return {
        spelling.lstrip("-"): option
        for option in parameters
        if isinstance(option, TyperOption)
        for spelling in option.opts
    }


def parse(
    args: Sequence[str],
    options: Mapping[str, TyperOption],
    *,
    ends_after: int | None = None,
    first: frozenset[str] = frozenset(),
    attached: bool = False,
) -> CommandLine:
    """Parse the words after a command's name.

    Args:
        options: by spelling.
        ends_after: after how many positionals all parsing ends, and the rest is passed on
            untouched, ``--`` included. None if options may stand anywhere.
        first: options that replace the first positional.
        attached: whether a short option may be followed by its value, as in kubectl: ``-nshop``.
    """
    line = CommandLine({}, {}, [], [])
    words = iter(args)
    for word in words:
        if word == "--" or len(word) < 2 or not word.startswith("-"):
            rest = [] if word == "--" else [word]
            count = len(line.positionals) + 1 + bool(first & line.values.keys())
            if word == "--" or (ends_after is not None and count >= ends_after):
                rest += words
            line.positionals.extend(rest)
            line.topics.extend(rest if line.values.get("help") else ())
            continue
        for name, value in _split(word, options, attached=attached):
            option = options.get(name)
            if option is None:
                raise _unknown(word, name, options)
            key = option.name or ""
            line.spellings.setdefault(key, []).append(name)
            if option.is_flag:
                line.values[key] = _boolean(name, value)
                continue
            value = next(words, None) if value is None else value
            if value is None:
                raise OptionError(
                    f'option "{dashed(name)}" needs a value',
                    flag_error=f"flag needs an argument: -{name}",
                )
            if option.multiple:
                line.values.setdefault(key, []).append(value)
            else:
                line.values[key] = value
    return line


def _split(
    word: str, options: Mapping[str, TyperOption], *, attached: bool
) -> list[tuple[str, str | None]]:
    name, equals, value = word.lstrip("-").partition("=")
    given = value if equals else None
    is_bundle = not word.startswith("--") and name not in options and len(name) > 1
    option = options.get(name[:1]) if is_bundle and attached else None
    if option is not None and not option.is_flag:
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


def _unknown(word: str, name: str, options: Mapping[str, TyperOption]) -> OptionError:
    near = get_close_matches(name, options, n=1)
    hint = f"did you mean {dashed(near[0])}?" if near else None
    message = f'unknown option "{word.partition("=")[0]}"'
    return OptionError(message, flag_error=f"flag provided but not defined: -{name}", hint=hint)
