"""What a command says of its options and arguments, once, for every reader of command lines.

A command is a function: its first parameter takes the application's context, each other one is
``Annotated`` with an ``Option`` or an ``Argument``. By that ``cli.plain`` reads lines, ``cli.page``
writes the help, and ``cli.validation`` lets Typer say what is wrong with values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple, get_type_hints

from pycrictl.cli.argv import OptionSpec
from pycrictl.errors import UsageError
from pycrictl.units import quote

HELP = ("--help", "-h")
"""The spellings of the option that every command has without declaring it."""


_PATHS = ("FILE", "DIR", "SOCKET", "CONFIG", "SRC", "DST")
"""How the metavars of paths end, which may be any bytes."""


class Option:
    """An option.

    Args:
        names: its spellings, with their dashes.
        metavar: what stands for its value in the help.
        help: a sentence for the help.
        envvar: the variable that gives its value where the line does not; empty for none.
        parser: turns its text into its value, or raises ValueError; None for text.
        show_default: whether the help shows its default.
        answer: gives a line to print in place of running the command; None for none.
    """

    __slots__ = ("answer", "envvar", "help", "metavar", "names", "parser", "show_default")

    def __init__(
        self,
        *names: str,
        help: str,
        metavar: str | None = None,
        envvar: str = "",
        parser: Callable[[str], Any] | None = None,
        show_default: bool = True,
        answer: Callable[[], str] | None = None,
    ) -> None:
        self.names = names
        self.metavar = metavar
        self.help = help
        self.envvar = envvar
        self.parser = parser
        self.show_default = show_default
        self.answer = answer

    @property
    def spellings(self) -> tuple[str, ...]:
        """Its spellings, those with one dash first."""
        return tuple(sorted(self.names, key=lambda name: name.startswith("--")))

    @property
    def canonical(self) -> str:
        """The longest spelling."""
        return max(self.names, key=len)


class Argument:
    """A positional argument, or all that are left where it is a list.

    Args:
        metavar: its name in the usage line.
        help: a sentence for the help.
        show_default: whether the help shows its default.
    """

    __slots__ = ("help", "metavar", "show_default")

    def __init__(self, *, metavar: str, help: str, show_default: bool = True) -> None:
        self.metavar = metavar
        self.help = help
        self.show_default = show_default


class Parameter(NamedTuple):
    """A declared parameter of a command's function.

    Attributes:
        name: the function's name for it.
        type: the type of its value; a ``bool`` option is a switch, a list one is repeatable.
        declared: how it is given.
        default: its value if it is not given; ``...`` if it must be.
    """

    name: str
    type: Any
    declared: Option | Argument
    default: Any

    @property
    def is_switch(self) -> bool:
        """Whether it is given without a value."""
        return self.type is bool

    @property
    def shown_default(self) -> Any:
        """The default if the help shows it, else None."""
        is_shown = self.declared.show_default and self.default not in (..., "")
        return self.default if is_shown else None

    @property
    def is_list(self) -> bool:
        """Whether it takes any number of values."""
        return self.type in (list[str], list[str] | None)


class BadParameter(UsageError):
    """The value of an option is wrong; how to ask for help is hinted at."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(f"invalid value for {option}: {problem}")


class Call(NamedTuple):
    """A command and what it was given.

    Attributes:
        function: the command's function.
        values: its arguments by name, without the context.
    """

    function: Callable[..., None]
    values: dict[str, Any]


def require_utf8(call: Call) -> None:
    """Require that all but paths can be sent over the CRI, whose texts are UTF-8.

    Raises:
        UsageError: something cannot.
    """
    for name, value in call.values.items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and not text.isascii() and not _is_utf8(text):
                declared = {each.name: each.declared for each in parameters(call.function)}[name]
                if not (declared.metavar or "").endswith(_PATHS):
                    # The value of an option may be a password.
                    shown = declared.canonical if isinstance(declared, Option) else quote(text)
                    raise UsageError(f"{shown} is not UTF-8")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@cache
def parameters(function: Callable[..., None]) -> tuple[Parameter, ...]:
    """Return the parameters of a command's function that are given on the command line."""
    hints = get_type_hints(function, include_extras=True)
    names = function.__code__.co_varnames[1 : function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    required = (...,) * (len(names) - len(defaults))
    return tuple(
        Parameter(name, hints[name].__origin__, hints[name].__metadata__[0], default)
        for name, default in zip(names, (*required, *defaults), strict=True)
    )


def specs(found: Iterable[Parameter]) -> dict[str, OptionSpec]:
    """Return the options for ``argv.parse``, that of the help included."""
    by_spelling = dict.fromkeys([name.lstrip("-") for name in HELP], OptionSpec(HELP[0], True))
    for parameter in found:
        option = parameter.declared
        if isinstance(option, Option):
            spec = OptionSpec(option.canonical, parameter.is_switch, parameter.is_list)
            by_spelling.update((name.lstrip("-"), spec) for name in option.names)
    return by_spelling
