"""The nodes of a parsed template, which evaluate themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from pycrictl.errors import UsageError
from pycrictl.show.gotemplate.formatting import plain
from pycrictl.show.gotemplate.functions import DECIDING, FUNCTIONS
from pycrictl.units import quote

KINDS: Final = {
    type(None): "null",
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    list: "a list",
}


class TemplateError(UsageError):
    """A template is malformed, or does not fit its data; the message says where."""

    reference: ClassVar[str] = "template"


class Run:
    """Output and variables of one execution. Later variables hide earlier ones of the same name."""

    def __init__(self, data: Any) -> None:
        self.output: list[str] = []
        self.variables: list[tuple[str, Any]] = [("$", data)]

    def walk(self, nodes: Sequence[Node], dot: Any) -> None:
        known = len(self.variables)
        for node in nodes:
            node.run(self, dot)
        del self.variables[known:]

    def index(self, name: str) -> int:
        places = reversed(range(len(self.variables)))
        return next(place for place in places if self.variables[place][0] == name)

    def set(self, name: str, value: Any, *, declares: bool) -> None:
        if declares:
            self.variables.append((name, value))
        else:
            self.variables[self.index(name)] = (name, value)


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Position:
    """Where a node stands: its line, from 1; the characters before it in the line; its text."""

    line: int
    column: int
    source: str

    def error(self, message: str) -> TemplateError:
        return TemplateError(f"template: :{self.line}:{self.column}: at <{self.source}>: {message}")


@dataclass(frozen=True, slots=True)
class Literal:
    """A string, number, boolean or ``nil``."""

    place: Position
    constant: Any

    def value(self, run: Run, dot: Any) -> Any:
        return self.constant


@dataclass(frozen=True, slots=True)
class Dot:
    """``.``: the current value."""

    place: Position

    def value(self, run: Run, dot: Any) -> Any:
        return dot


@dataclass(frozen=True, slots=True)
class Variable:
    """``$name``; the whole data is ``$``."""

    place: Position
    name: str

    def value(self, run: Run, dot: Any) -> Any:
        return run.variables[run.index(self.name)][1]


@dataclass(frozen=True, slots=True)
class Function:
    """The name of a function."""

    place: Position
    name: str

    def value(self, run: Run, dot: Any) -> Any:
        return self.call(self.place, (), [], run, dot)

    def call(
        self, place: Position, arguments: Sequence[Operand], last: list[Any], run: Run, dot: Any
    ) -> Any:
        """Return the result for the arguments and, in a pipeline, the value before: ``last``."""
        function, least, most = FUNCTIONS.get(self.name, (None, 1, None))
        count = len(arguments) + len(last)
        if count < least or (most is not None and count > most):
            limit = f"{least}" if least == most else f"{least} or more"
            raise self.place.error(f"{self.name} takes {limit} arguments, not {count}")
        if function is None:
            # The first that decides is enough; the rest may not even have a value.
            for argument in arguments:
                value = argument.value(run, dot)
                if bool(value) is DECIDING[self.name]:
                    return value
            return last[0] if last else value
        values = [argument.value(run, dot) for argument in arguments] + last
        try:
            return function(*values)
        except (ValueError, OverflowError) as exc:
            raise place.error(f"{self.name}: {exc}") from None


@dataclass(frozen=True, slots=True)
class Fields:
    """``.a.b`` of an operand."""

    place: Position
    operand: Operand
    names: tuple[str, ...]

    def value(self, run: Run, dot: Any) -> Any:
        value = self.operand.value(run, dot)
        for name in self.names:
            if not isinstance(value, dict):
                raise self.place.error(f"{KINDS[type(value)]} has no field {quote(name)}")
            if name not in value:
                raise self.place.error(f"there is no key {quote(name)}")
            value = value[name]
        return value


@dataclass(frozen=True, slots=True)
class CommandNode:
    """An operand and its arguments."""

    place: Position
    operands: tuple[Operand, ...]

    def value(self, run: Run, dot: Any, last: list[Any]) -> Any:
        first, *rest = self.operands
        if isinstance(first, Function):
            return first.call(self.place, rest, last, run, dot)
        if rest or last:
            raise first.place.error("only functions take arguments")
        if isinstance(first, Literal) and first.constant is None:
            raise first.place.error("nil alone has no value")
        return first.value(run, dot)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands of which each gets the value of the one before as its last argument.

    Attributes:
        variables: the variables that get the value, two only in ``range``.
        declares: whether they are new (``:=``) or known (``=``).
    """

    place: Position
    commands: tuple[CommandNode, ...]
    variables: tuple[str, ...] = ()
    declares: bool = False

    def value(self, run: Run, dot: Any) -> Any:
        value: Any = None
        for index, command in enumerate(self.commands):
            value = command.value(run, dot, [value] if index else [])
        for name in self.variables:
            run.set(name, value, declares=self.declares)
        return value


Operand = Literal | Dot | Variable | Function | Fields | Pipeline


@dataclass(frozen=True, slots=True)
class Text:
    """What is copied to the output."""

    text: str

    def run(self, run: Run, dot: Any) -> None:
        run.output.append(self.text)


@dataclass(frozen=True, slots=True)
class Action:
    """``{{pipeline}}``."""

    pipeline: Pipeline

    def run(self, run: Run, dot: Any) -> None:
        value = self.pipeline.value(run, dot)
        if not self.pipeline.variables:
            run.output.append(plain(value))


@dataclass(frozen=True, slots=True)
class Branch:
    """``if``, ``with`` or ``range``, named by ``keyword``."""

    keyword: str
    pipeline: Pipeline
    body: tuple[Node, ...]
    otherwise: tuple[Node, ...]

    def run(self, run: Run, dot: Any) -> None:
        known = len(run.variables)
        # As in Go, all variables of a loop hold the whole value until the first iteration, and in
        # {{else}}.
        value = self.pipeline.value(run, dot)
        if self.keyword == "range":
            self._loop(run, dot, value)
        elif value:
            run.walk(self.body, value if self.keyword == "with" else dot)
        else:
            run.walk(self.otherwise, dot)
        del run.variables[known:]

    def _loop(self, run: Run, dot: Any, value: Any) -> None:
        known, names = len(run.variables), self.pipeline.variables
        items: list[tuple[Any, Any]] = []
        if isinstance(value, dict):
            items = [(key, value[key]) for key in sorted(value)]
        elif isinstance(value, list):
            items = list(enumerate(value))
        elif value is not None:
            raise self.pipeline.place.error(f"{KINDS[type(value)]} cannot be iterated over")
        for key, item in items:
            # One variable gets the item, two get its key or place before it.
            for name, part in zip(names, (key, item) if len(names) == 2 else (item,), strict=False):
                run.set(name, part, declares=self.pipeline.declares)
            try:
                run.walk(self.body, item)
            except _Continue:
                pass
            except _Break:
                break
            finally:
                del run.variables[known:]
        if not items:
            run.walk(self.otherwise, dot)


@dataclass(frozen=True, slots=True)
class Jump:
    """``break`` or ``continue``, named by ``keyword``."""

    keyword: str

    def run(self, run: Run, dot: Any) -> None:
        raise _Break if self.keyword == "break" else _Continue


Node = Text | Action | Branch | Jump
