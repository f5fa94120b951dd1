"""Output formats: chosen once by ``--output``, then written as often as needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TextIO, TypeVar

from google.protobuf.message import Message

from pycrictl.base.errors import UnknownFormat
from pycrictl.base.units import quote
from pycrictl.show import render
from pycrictl.show.columns import Column, Columns, SortKey, sort_paths
from pycrictl.show.jsonpath import JsonPathTemplate
from pycrictl.show.protodata import Document, message_document
from pycrictl.show.render import Block, Table

if TYPE_CHECKING:
    from pycrictl.show.gotemplate import GoTemplate

T = TypeVar("T")

METRICS_FORMATS: Final = ("json", "yaml", "jsonpath=TEMPLATE")
OUTPUT_FORMATS: Final = (*METRICS_FORMATS, "table")
DOCUMENT_FORMATS: Final = (*METRICS_FORMATS, "go-template")
INSPECT_FORMATS: Final = (*DOCUMENT_FORMATS, "table")
LIST_FORMATS: Final = (*OUTPUT_FORMATS, "wide", "custom-columns=COLUMNS")


class Format:
    """An output format.

    ``output`` is the value of ``--output``, empty for JSON; only ``go-template`` uses ``template``.
    ``aliases`` maps further names, for use in JSONPath, to keys of the document.
    """

    def __init__(
        self,
        output: str,
        *,
        template: str = "",
        formats: Sequence[str] = INSPECT_FORMATS,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self._kind, equals, self._argument = (output or "json").partition("=")
        if (self._kind, equals) not in (name.partition("=")[:2] for name in formats):
            raise UnknownFormat(quote(output), formats)
        self._template: GoTemplate | JsonPathTemplate | None = None
        if self._kind == "jsonpath":
            self._template = JsonPathTemplate(self._argument, aliases=aliases)
        elif self._kind == "go-template":
            from pycrictl.show.gotemplate import GoTemplate  # noqa: PLC0415 - only for templates

            self._template = GoTemplate(template)

    @property
    def is_table(self) -> bool:
        return self._kind in ("table", "wide")

    @property
    def is_wide(self) -> bool:
        return self._kind == "wide"

    @property
    def is_template(self) -> bool:
        return self._template is not None

    def write_answers(
        self,
        answers: Sequence[T],
        document: Callable[[T], Document],
        block: Callable[[T], Block],
        out: TextIO,
        *,
        is_list: bool,
    ) -> None:
        """Write answers; a single one is written as a list only with ``is_list``."""
        if self.is_table:
            for answer in answers:
                render.write_block(block(answer), out)
            return
        made = [document(answer) for answer in answers]
        several = {"items": made} if self._kind == "jsonpath" else made  # as in kubectl
        self.write_document(several if is_list or len(made) != 1 else made[0], out)

    def write_document(self, document: Any, out: TextIO, *, is_ordered: bool = False) -> None:
        if self._template is not None:
            text = self._template.render(document)
            if self._kind == "jsonpath":
                text = text.removesuffix("\n")
            render.write_text(text, out)
        elif self._kind == "yaml":
            render.write_yaml(document, out)
        else:
            render.write_json(document, out, is_ordered=is_ordered)

    def write_message(self, message: Message, out: TextIO) -> None:
        self.write_document(message_document(message), out, is_ordered=True)


class Views(NamedTuple):
    """The views of one kind of object: as tables (wide, or for a terminal) and as blocks."""

    table: Callable[[Sequence[Any], Literal["", "wide", "screen"]], Table]
    block: Callable[[Any], Block] = lambda _: ()


class ListFormat(Format):
    """The format of a list, or bare IDs, or blocks.

    ``name`` is the key of the list in documents, such as ``containers``; paths can also use
    ``items``. ``quiet`` writes IDs and ``verbose`` blocks, but only instead of tables. ``columns``
    are those by which the list can be sorted.
    """

    def __init__(
        self,
        output: str,
        *,
        name: str,
        quiet: bool = False,
        verbose: bool = False,
        sort_by: str = "",
        header: bool = True,
        columns: Sequence[Column] = (),
        formats: Sequence[str] = LIST_FORMATS,
    ) -> None:
        if not output:
            raise UnknownFormat(quote(output), formats)
        super().__init__(output, formats=formats, aliases={"items": name})
        self._name = name
        self._header = header
        self._columns = Columns(self._argument) if self._kind == "custom-columns" else None
        if self.is_table:
            self._kind = "ids" if quiet else "blocks" if verbose else self._kind
        self._sort_key = SortKey(sort_by, sort_paths(columns)) if sort_by else None

    def write(
        self,
        items: Sequence[Any],
        views: Views | None,
        out: TextIO,
        columns: int = 0,
    ) -> None:
        """Write objects, sorted if requested.

        Documents need no ``views``; ``columns`` is the width that a table must fit, 0 for any.
        """
        is_for_people = self.is_table or self._kind in ("ids", "blocks")
        documents: list[Document] = []
        if self._sort_key is not None or not is_for_people:
            documents = [message_document(item) for item in items]
        if self._sort_key is not None:
            pairs = self._sort_key.sorted(list(zip(items, documents, strict=True)), documents)
            items, documents = [item for item, _ in pairs], [item for _, item in pairs]
        if self._columns is not None:
            table = self._ordered(self._columns.table(documents), documents)
            render.write_table(table, out, header=self._header)
        elif not is_for_people:
            self.write_document({self._name: documents}, out, is_ordered=True)
        elif self._kind == "ids":
            render.write_ids((item.id for item in items), out)
        elif views is None:
            raise AssertionError("there is no table")
        elif self._kind == "blocks":
            render.write_blocks(map(views.block, items), out)
        elif columns and not self.is_wide:
            table = self._ordered(views.table(items, "screen"), documents)
            render.write_fitted(table, out, columns, header=self._header)
        else:
            table = self._ordered(views.table(items, "wide" if self.is_wide else ""), documents)
            render.write_table(table, out, header=self._header)

    def _ordered(self, table: Table, documents: Sequence[Document]) -> Table:
        return table if self._sort_key is None else self._sort_key.ordered(table, documents)
