"""``pycrictl metricsp``."""

from __future__ import annotations

import typer

from pycrictl.cli import listing
from pycrictl.cli.context import app_context


def metricsp(
    ctx: typer.Context,
    output: listing.DocumentOutput = "json",
    watch: listing.WatchStats = False,
) -> None:
    """Show the metrics of pods.

    Example: pycrictl metricsp --output yaml
    """
    from pycrictl.cri import lists
    from pycrictl.show.details import write_list

    is_yaml = listing.wants_yaml(output)
    app = app_context(ctx)
    with app.open_client("runtime") as client:

        def show() -> None:
            write_list("podMetrics", lists.pod_metrics(client), app.env.stdout, is_yaml=is_yaml)

        if watch:
            listing.repeat(app.env, show, pause_s=listing.STATS_PAUSE_S)
        else:
            show()
