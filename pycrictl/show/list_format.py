"""The output formats of the commands that list: chosen once, then written as often as needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO

from pycrictl.errors import UnknownFormat
from pycrictl.show import render
from pycrictl.show.custom_columns import Columns, SortKey
from pycrictl.show.fitting import write_fitted
from pycrictl.show.headings import OF_LISTS
from pycrictl.show.jsonpath import JsonPathTemplate
from pycrictl.show.protodata import message_document
from pycrictl.units import quote

if TYPE_CHECKING:
    from pycrictl.show.protodata import Document
    from pycrictl.show.render import Block, Table

FORMAT_NAMES: Final = ("json", "yaml", "table", "wide", "jsonpath", "custom-columns")
STATS_FORMATS: Final = ("json", "yaml", "table", "jsonpath=…", "custom-columns=…")
DOCUMENT_FORMATS: Final = ("json", "yaml", "jsonpath=…")
FORMATS: Final = (*FORMAT_NAMES[:-2], "jsonpath=…", "custom-columns=…")

DOCUMENT_KINDS: Final = ("json", "yaml", "jsonpath", "custom-columns")

ITEMS: Final = "items"
"""kubectl's name for any list, which paths may use instead of the list's own."""


class Views(NamedTuple):
    """How one kind of objects is shown: table (wide or not), block, table for a terminal."""

    table: Callable[[Sequence[Any], bool], Table]
    block: Callable[[Any], Block]
    on_screen: Callable[[Sequence[Any]], Table] | None = None


class ListFormat:
    """One of FORMATS, or bare IDs, or blocks.

    Args:
        output: the value of ``--output``.
        name: of the list in documents, such as ``containers``.
        quiet: whether to write IDs instead of tables; other values of ``output`` take precedence.
        verbose: whether to write blocks instead of tables; ``quiet`` takes precedence.
        sort_by: a heading or a path to sort by; empty for none.
        header: whether tables have headings.
        headings: those to sort by, and their paths; by default those of the list of that name.
        formats: the ones that the command has.

    Raises:
        UsageError: there is no such format, or a path or template is invalid.
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
        headings: Mapping[str, str] | None = None,
        formats: Sequence[str] = FORMATS,
    ) -> None:
        self._kind, equals, argument = output.partition("=")
        self._template: JsonPathTemplate | None = None
        self._columns: Columns | None = None
        self._sort_key: SortKey | None = None
        self._name = name
        self._header = header
        if equals and self._kind == "jsonpath":
            self._template = JsonPathTemplate(argument, aliases={ITEMS: name})
        elif equals and self._kind == "custom-columns":
            self._columns = Columns(argument)
        elif equals or self._kind not in formats:
            raise UnknownFormat(quote(output), formats)
        elif self._kind in ("table", "wide"):
            self._kind = "ids" if quiet else "blocks" if verbose else self._kind
        if sort_by:
            self._sort_key = SortKey(sort_by, OF_LISTS.get(name) if headings is None else headings)

    @property
    def is_table(self) -> bool:
        return self._kind in ("table", "wide")

    def write(
        self,
        found: Sequence[Any],
        views: Views | None,
        out: TextIO,
        screen: render.Screen | None = None,
    ) -> None:
        """Write objects, sorted if that was asked for.

        Args:
            found: the objects.
            views: for tables and blocks; None where there are none.
            out: where to.
            screen: the terminal that a table has to fit; None elsewhere.
        """
        documents: list[Document] = []
        if self._sort_key is not None or self._kind in DOCUMENT_KINDS:
            documents = [message_document(each) for each in found]
        if self._sort_key is not None:
            pairs = self._sort_key.sorted(list(zip(found, documents, strict=True)), documents)
            found, documents = [each for each, _ in pairs], [each for _, each in pairs]
        whole = {self._name: documents}
        if self._template is not None:
            render.write_text(self._template.render(whole).removesuffix("\n"), out)
        elif self._columns is not None:
            render.write_table(self._columns.table(documents), out, header=self._header)
        elif self._kind == "json":
            render.write_ordered_json(whole, out)
        elif self._kind == "yaml":
            render.write_document_yaml(whole, out)
        elif self._kind == "ids":
            render.write_lines((each.id for each in found), out)
        elif views is None:
            raise AssertionError("there is no table")
        elif self._kind == "blocks":
            render.write_blocks(map(views.block, found), out)
        elif screen is not None and self._kind == "table" and views.on_screen is not None:
            write_fitted(views.on_screen(found), out, screen, header=self._header)
        else:
            table = views.table(found, self._kind == "wide")
            render.write_table(table, out, header=self._header)
