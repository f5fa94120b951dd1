"""``pycrictl metricdescs``."""

from __future__ import annotations

import typer

from pycrictl.cli import list_options
from pycrictl.cli.context import app_context


def metricdescs(ctx: typer.Context, output: list_options.DocumentOutput = "json") -> None:
    """List the pod metrics that the runtime provides.

    Example: pycrictl metricdescs
    """
    from pycrictl._proto import cri_pb2
    from pycrictl.show.list_format import write_list

    is_yaml = list_options.wants_yaml(output)
    app = app_context(ctx)
    with app.open_client("runtime") as client:
        answer = client.call("ListMetricDescriptors", cri_pb2.ListMetricDescriptorsRequest())
    write_list("descriptors", answer.descriptors, app.env.stdout, is_yaml=is_yaml)
