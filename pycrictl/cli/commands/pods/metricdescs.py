"""``pycrictl metricdescs``."""

from __future__ import annotations

import typer

from pycrictl._proto import cri_pb2
from pycrictl.cli import list_options
from pycrictl.cli.context import AppContext
from pycrictl.show.list_format import DOCUMENT_FORMATS, ListFormat


def metricdescs(ctx: typer.Context, output: list_options.DocumentOutput = "json") -> None:
    """List the pod metrics that the runtime provides.

    Example: pycrictl metricdescs
    """
    app: AppContext = ctx.obj
    chosen = ListFormat(output or "json", name="descriptors", formats=DOCUMENT_FORMATS)
    with app.open_client("runtime") as client:
        answer = client.call("ListMetricDescriptors", cri_pb2.ListMetricDescriptorsRequest())
    chosen.write(answer.descriptors, None, app.env.stdout)
