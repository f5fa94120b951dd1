"""``pycrictl metricsp``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from pycrictl.cli import list_options
from pycrictl.cli.context import AppContext
from pycrictl.cri.lists import fetch
from pycrictl.show.list_format import DOCUMENT_FORMATS, ListFormat

if TYPE_CHECKING:
    from typing import TextIO


def metricsp(
    ctx: typer.Context,
    output: list_options.DocumentOutput = "json",
    watch: list_options.WatchStats = False,
) -> None:
    """Show the metrics of pods.

    Example: pycrictl metricsp --output yaml
    """
    app: AppContext = ctx.obj
    chosen = ListFormat(output or "json", name="podMetrics", formats=DOCUMENT_FORMATS)
    with app.open_client("runtime") as client:

        def write(out: TextIO) -> None:
            chosen.write(fetch.pod_metrics(client), None, out)

        if watch:
            with app.until_interrupted() as viewer:
                viewer.repeat(write, pause_s=list_options.STATS_PAUSE_S)
        else:
            write(app.env.stdout)
