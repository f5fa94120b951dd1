"""The output formats of the commands that show details: JSON, YAML, templates, fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar

from pycrictl.errors import UnknownFormat
from pycrictl.show import render
from pycrictl.show.gotemplate import GoTemplate
from pycrictl.show.jsonpath import JsonPathTemplate
from pycrictl.show.protodata import message_document
from pycrictl.units import quote

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from pycrictl.show.protodata import Document
    from pycrictl.show.render import Block

T = TypeVar("T")

DOCUMENT_FORMATS: Final = ("json", "yaml", "go-template", "jsonpath=…")
INSPECT_FORMATS: Final = (*DOCUMENT_FORMATS, "table")


class InspectFormat:
    """JSON, YAML, a template of Go or JSONPath, or blocks of fields, which are called a table.

    Args:
        output: the value of ``--output``; empty for JSON.
        template: the value of ``--template``, which only ``go-template`` uses.
        formats: the ones that the command has.
    """

    def __init__(
        self, output: str, *, template: str = "", formats: Sequence[str] = INSPECT_FORMATS
    ) -> None:
        self._kind, equals, argument = (output or "json").partition("=")
        self._template: GoTemplate | None = None
        self._path: JsonPathTemplate | None = None
        if equals and self._kind == "jsonpath":
            self._path = JsonPathTemplate(argument)
        elif equals or self._kind not in formats:
            raise UnknownFormat(quote(output), formats)
        if self._kind == "go-template":
            self._template = GoTemplate(template)

    @property
    def is_table(self) -> bool:
        return self._kind == "table"

    @property
    def is_wide(self) -> bool:
        return self._kind == "wide"

    @property
    def is_template(self) -> bool:
        return self._template is not None or self._path is not None

    def write(
        self,
        answers: Sequence[T],
        document: Callable[[T], Document],
        block: Callable[[T], Block],
        out: TextIO,
    ) -> None:
        """Write what the runtime answered; several answers make a list of documents."""
        if self.is_table:
            for answer in answers:
                render.write_block(block(answer), out)
        else:
            made = [document(answer) for answer in answers]
            several = {"items": made} if self._path is not None else made  # as kubectl has them
            self.write_document(made[0] if len(made) == 1 else several, out)

    def write_document(self, document: Any, out: TextIO) -> None:
        """Write data; the keys of JSON are sorted."""
        if self._path is not None:
            render.write_text(self._path.render(document).removesuffix("\n"), out)
        elif self._template is not None:
            render.write_text(self._template.render(document), out)
        elif self._kind == "yaml":
            render.write_document_yaml(document, out)
        else:
            render.write_document_json(document, out)

    def write_message(self, message: Message, out: TextIO) -> None:
        """Write a message; the keys of JSON are in the order of the API."""
        document = message_document(message)
        if self._kind == "json":
            render.write_ordered_json(document, out)
        else:
            self.write_document(document, out)
