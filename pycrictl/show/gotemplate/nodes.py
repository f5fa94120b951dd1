"""The parts of a parsed template."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from pycrictl.errors import UsageError


class TemplateError(UsageError):
    """A template is malformed, or does not fit its data; the message says where."""

    reference: ClassVar[str] = "template"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node stands in the template.

    Attributes:
        line: from 1.
        column: characters before it in the line.
        source: its text.
    """

    line: int
    column: int
    source: str

    def error(self, message: str) -> TemplateError:
        """Return the error of a template that cannot be executed here."""
        return TemplateError(f"template: :{self.line}:{self.column}: at <{self.source}>: {message}")


@dataclass(frozen=True, slots=True)
class Text:
    """What is copied to the output."""

    text: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A string, number, boolean or ``nil``."""

    place: Place
    value: Any


@dataclass(frozen=True, slots=True)
class Dot:
    """``.``: the current value."""

    place: Place


@dataclass(frozen=True, slots=True)
class Variable:
    """``$name``; the whole data is ``$``."""

    place: Place
    name: str


@dataclass(frozen=True, slots=True)
class Function:
    """The name of a function."""

    place: Place
    name: str


@dataclass(frozen=True, slots=True)
class Fields:
    """``.a.b`` of an operand."""

    place: Place
    operand: Operand
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Command:
    """An operand and its arguments."""

    place: Place
    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands of which each gets the value of the one before as its last argument.

    Attributes:
        variables: the variables that get the value, two only in ``range``.
        declares: whether they are new (``:=``) or known (``=``).
    """

    place: Place
    commands: tuple[Command, ...]
    variables: tuple[str, ...] = ()
    declares: bool = False


Operand = Literal | Dot | Variable | Function | Fields | Pipeline


@dataclass(frozen=True, slots=True)
class Action:
    """``{{pipeline}}``."""

    pipeline: Pipeline


@dataclass(frozen=True, slots=True)
class Branch:
    """``if``, ``with`` or ``range``, named by ``keyword``."""

    keyword: str
    pipeline: Pipeline
    body: tuple[Node, ...]
    otherwise: tuple[Node, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Jump:
    """``break`` or ``continue``, named by ``keyword``."""

    keyword: str


Node = Text | Action | Branch | Jump
