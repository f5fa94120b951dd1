"""What ``stats`` and ``statsp`` have in common: samples, and tables of two of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

from pycrictl.cli import crictl, list_options
from pycrictl.cli.context import AppContext, Exit
from pycrictl.cli.declare import Option
from pycrictl.cli.options import INTEGER, check_output
from pycrictl.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from pycrictl.cli.context import AppContext
    from pycrictl.cri.inspection.stats import Sample
    from pycrictl.show.render import Table
    from pycrictl.show.watching import Viewer

LONGEST_S: Final = 24 * 3600

StatsOutput = Annotated[
    str, Option("--output", "-o", metavar="json|yaml|table", help="Output format.")
]
Seconds = Annotated[
    int,
    Option("--seconds", "-s", help="Seconds between the two measurements.", **INTEGER),
]


@dataclass(slots=True)
class Measuring:
    """One run of ``stats`` or ``statsp``.

    Attributes:
        output: json, yaml or table.
        seconds: between the two samples of a table.
        watch: whether to go on until Ctrl-C.
        warnings: those shown so far; each is shown once.

    Raises:
        UsageError: an unknown format, or an unreasonable number of seconds.
    """

    output: str
    seconds: int
    watch: bool
    warnings: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.output = crictl.known_format(self.output or "table", "json", "yaml", "table")
        check_output(self.output, "json", "yaml", "table")
        if not 0 <= self.seconds <= LONGEST_S:
            raise UsageError(f'"{self.seconds}" for --seconds is not between 0 and {LONGEST_S}')

    def show(
        self,
        app: AppContext,
        sample: Callable[[], Sample[Any]],
        table: Callable[[list[Any], list[Any]], Table],
    ) -> None:
        """Measure and show, once or until Ctrl-C.

        Raises:
            Exit: with the status 1 if something could not be measured, unless watching.
        """
        if self.watch:
            with app.until_interrupted() as viewer:
                while True:
                    self._show_once(viewer, sample, table)
                    viewer.pause(list_options.STATS_PAUSE_S)
            return
        from pycrictl.show.watching import Viewer

        self._show_once(Viewer(app.env), sample, table)
        if self.warnings:
            raise Exit(ExitCode.FAILURE)

    def _show_once(
        self,
        viewer: Viewer,
        sample: Callable[[], Sample[Any]],
        table: Callable[[list[Any], list[Any]], Table],
    ) -> None:
        from pycrictl.show import render
        from pycrictl.show.list_format import write_list

        measured = sample()
        if self.output == "table":
            before = measured.stats
            viewer.pause(self.seconds)
            measured = sample()
            if not viewer.is_in_place:
                viewer.show(crictl.clear_screen)
            viewer.show(partial(render.write_table, table(before, measured.stats)))
        else:
            is_yaml = self.output == "yaml"
            viewer.show(partial(write_list, "stats", measured.stats, is_yaml=is_yaml))
        for failure in measured.failures:
            if failure.message not in self.warnings:
                self.warnings.add(failure.message)
                viewer.warn(failure.message)
