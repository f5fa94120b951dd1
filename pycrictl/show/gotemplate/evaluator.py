"""From the nodes of a template and a document to text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from pycrictl.show.gotemplate.formatting import plain
from pycrictl.show.gotemplate.functions import DECIDING, FUNCTIONS, is_true
from pycrictl.show.gotemplate.nodes import (
    Action,
    Branch,
    Command,
    Dot,
    Fields,
    Function,
    Jump,
    Literal,
    Node,
    Operand,
    Pipeline,
    Text,
    Variable,
)
from pycrictl.units import quote

KINDS: Final = {str: "a string", bool: "a boolean", int: "a number", float: "a number"}


class _Break(Exception):
    """Leave the innermost loop."""


class _Continue(Exception):
    """Start the next iteration of the innermost loop."""


def evaluate(nodes: Sequence[Node], data: Any) -> str:
    """Return the text that the nodes make of ``data``.

    Raises:
        TemplateError: a key is missing, or a function cannot take its arguments.
    """
    evaluator = _Evaluator(data)
    evaluator.walk(nodes, data)
    return "".join(evaluator.output)


class _Evaluator:
    """Output and variables of one run. Later variables hide earlier ones of the same name."""

    def __init__(self, data: Any) -> None:
        self.output: list[str] = []
        self.variables: list[tuple[str, Any]] = [("$", data)]

    def walk(self, nodes: Sequence[Node], dot: Any) -> None:
        known = len(self.variables)
        for node in nodes:
            match node:
                case Text(text):
                    self.output.append(text)
                case Action(pipeline):
                    value = self.pipeline(pipeline, dot)
                    if not pipeline.variables:
                        self.output.append(plain(value))
                case Branch():
                    self.branch(node, dot)
                case Jump(keyword):
                    raise _Break if keyword == "break" else _Continue
        del self.variables[known:]

    def branch(self, node: Branch, dot: Any) -> None:
        known = len(self.variables)
        if node.keyword == "range":
            self.loop(node, dot)
        else:
            value = self.pipeline(node.pipeline, dot)
            if is_true(value):
                self.walk(node.body, value if node.keyword == "with" else dot)
            else:
                self.walk(node.otherwise, dot)
        del self.variables[known:]

    def loop(self, node: Branch, dot: Any) -> None:
        pipeline = node.pipeline
        # As in Go, all variables hold the whole value until the first iteration, and in {{else}}.
        value = self.pipeline(pipeline, dot)
        known = len(self.variables)
        items: list[tuple[Any, Any]]
        if isinstance(value, dict):
            items = [(key, value[key]) for key in sorted(value)]
        elif isinstance(value, list):
            items = list(enumerate(value))
        elif value is None:
            items = []
        else:
            raise pipeline.place.error(f"{KINDS[type(value)]} cannot be iterated over")
        for key, item in items:
            names = pipeline.variables
            # One variable gets the item, two get its key or place before it.
            for name, part in zip(names, (key, item) if len(names) == 2 else (item,), strict=False):
                self.set(name, part, declares=pipeline.declares)
            try:
                self.walk(node.body, item)
            except _Continue:
                pass
            except _Break:
                break
            finally:
                del self.variables[known:]
        if not items:
            self.walk(node.otherwise, dot)

    # Values

    def pipeline(self, pipeline: Pipeline, dot: Any) -> Any:
        value = self.commands(pipeline, dot)
        for name in pipeline.variables:
            self.set(name, value, declares=pipeline.declares)
        return value

    def set(self, name: str, value: Any, *, declares: bool) -> None:
        if declares:
            self.variables.append((name, value))
            return
        index = next(
            i for i in reversed(range(len(self.variables))) if self.variables[i][0] == name
        )
        self.variables[index] = (name, value)

    def commands(self, pipeline: Pipeline, dot: Any) -> Any:
        value: Any = None
        for index, command in enumerate(pipeline.commands):
            value = self.command(command, dot, [value] if index else [])
        return value

    def command(self, command: Command, dot: Any, last: list[Any]) -> Any:
        """Return the value of a command; ``last`` holds what the command before it gave."""
        first, *rest = command.operands
        if isinstance(first, Function):
            return self.call(first, command, rest, dot, last)
        if rest or last:
            raise first.place.error("only functions take arguments")
        if isinstance(first, Literal) and first.value is None:
            raise first.place.error("nil alone has no value")
        return self.operand(first, dot)

    def call(
        self,
        function: Function,
        command: Command,
        rest: Sequence[Operand],
        dot: Any,
        last: list[Any],
    ) -> Any:
        name = function.name
        run, least, most = FUNCTIONS.get(name, (None, 1, None))
        count = len(rest) + len(last)
        if count < least or (most is not None and count > most):
            limit = f"{least}" if least == most else f"{least} or more"
            raise function.place.error(f"{name} takes {limit} arguments, not {count}")
        if run is None:
            # The first that decides is enough; the rest may not even have a value.
            for operand in rest:
                value = self.operand(operand, dot)
                if is_true(value) is DECIDING[name]:
                    return value
            return last[0] if last else value
        values = [self.operand(operand, dot) for operand in rest] + last
        try:
            return run(*values)
        except (ValueError, OverflowError) as exc:
            raise command.place.error(f"{name}: {exc}") from None

    def operand(self, operand: Operand, dot: Any) -> Any:
        match operand:
            case Literal(_, value):
                return value
            case Dot():
                return dot
            case Variable(_, name):
                return next(value for known, value in reversed(self.variables) if known == name)
            case Pipeline():
                return self.pipeline(operand, dot)
            case Fields(_, inner, names):
                return self.fields(operand, self.operand(inner, dot), names)
            case Function():
                return self.call(operand, Command(operand.place, (operand,)), (), dot, [])

    def fields(self, node: Fields, value: Any, names: Iterable[str]) -> Any:
        for name in names:
            if value is None:
                raise node.place.error(f"null has no field {quote(name)}")
            if not isinstance(value, dict):
                kind = KINDS.get(type(value), "a list")
                raise node.place.error(f"{kind} has no field {quote(name)}")
            if name not in value:
                raise node.place.error(f"there is no key {quote(name)}")
            value = value[name]
        return value
