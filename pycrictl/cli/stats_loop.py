"""What ``stats`` and ``statsp`` have in common: samples, and tables of two of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pycrictl.cli import crictl, list_options, options
from pycrictl.cli.context import AppContext
from pycrictl.errors import ExitCode, UsageError
from pycrictl.show.list_format import STATS_FORMATS, ListFormat, Views
from pycrictl.show.watching import Viewer

if TYPE_CHECKING:
    from pycrictl.cli.context import AppContext
    from pycrictl.cri.inspection.stats import Sample
    from pycrictl.show.render import Table

LONGEST_S: Final = 24 * 3600

StatsOutput = Annotated[
    str,
    options.formats("json", "yaml", "table", "jsonpath=TEMPLATE", "custom-columns=COLUMNS"),
]
Seconds = Annotated[
    int,
    typer.Option(
        "--seconds",
        "-s",
        help="Seconds between the two measurements.",
        parser=options.integer,
        metavar="INT",
    ),
]


@dataclass(slots=True)
class Measuring:
    """One run of ``stats`` or ``statsp``.

    Attributes:
        seconds: between the two samples of a table.
        sort_by: a heading or a path to sort by; empty for none.
        headings: the paths behind the headings but CPU.
        warnings: those shown so far; each is shown once.
    """

    output: str
    seconds: int
    watch: bool
    sort_by: str
    header: bool
    headings: Mapping[str, str]
    warnings: set[str] = field(default_factory=set)
    format: ListFormat = field(init=False)

    def __post_init__(self) -> None:
        known = [name.partition("=")[0] for name in STATS_FORMATS]
        is_by_cpu = self.sort_by.removeprefix("-").lower() in ("cpu", "cpu %")
        self.format = ListFormat(
            crictl.known_format(self.output or "table", *known),
            name="stats",
            sort_by="" if is_by_cpu else self.sort_by,
            header=self.header,
            headings=self.headings,
            formats=STATS_FORMATS,
        )
        if not is_by_cpu:
            self.sort_by = ""
        elif not self.format.is_table:
            raise UsageError("CPU is measured for tables only", hint="sort by a path")
        if not 0 <= self.seconds <= LONGEST_S:
            raise UsageError(f'"{self.seconds}" for --seconds is not between 0 and {LONGEST_S}')

    def show(
        self,
        app: AppContext,
        sample: Callable[[], Sample[Any]],
        table: Callable[[list[Any], list[Any]], Table],
        if_empty: Callable[[], None],
    ) -> None:
        """Measure and show, once or until Ctrl-C.

        Args:
            app: the program.
            sample: measures.
            table: of two samples.
            if_empty: called after a table that is shown once and is empty.

        Raises:
            Exit: with status 1 if something could not be measured, unless watching.
        """
        if self.watch:
            with app.until_interrupted() as viewer:
                while True:
                    self._show_once(viewer, sample, table)
                    viewer.pause(list_options.STATS_PAUSE_S)
            return
        if not self._show_once(Viewer(app.env), sample, table) and self.format.is_table:
            if_empty()
        if self.warnings:
            raise typer.Exit(ExitCode.FAILURE)

    def _show_once(
        self,
        viewer: Viewer,
        sample: Callable[[], Sample[Any]],
        table: Callable[[list[Any], list[Any]], Table],
    ) -> bool:
        """Show one measurement; return whether there was anything to measure."""
        measured = sample()
        views = None
        if self.format.is_table:
            before = measured.stats
            viewer.pause(self.seconds)
            measured = sample()
            if not viewer.is_in_place:
                viewer.show(crictl.clear_screen)
            views = Views(lambda found, _: self._by_cpu(table(before, list(found))), lambda _: ())
        viewer.show(partial(self.format.write, measured.stats, views))
        for failure in measured.failures:
            if failure.message not in self.warnings:
                self.warnings.add(failure.message)
                viewer.warn(failure.message)
        return bool(measured.stats or measured.failures)

    def _by_cpu(self, table: Table) -> Table:
        if not self.sort_by:
            return table
        column = table.header.index("CPU %")

        def used(row: tuple[str, ...]) -> float:
            return -1.0 if row[column] == "-" else float(row[column])

        is_descending = self.sort_by.startswith("-")
        return table._replace(rows=sorted(table.rows, key=used, reverse=is_descending))
