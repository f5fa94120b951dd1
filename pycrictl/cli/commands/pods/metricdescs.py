"""``pycrictl metricdescs``."""

from __future__ import annotations

from pycrictl.cli import list_options
from pycrictl.cli.context import AppContext


def metricdescs(app: AppContext, output: list_options.DocumentOutput = "json") -> None:
    """List the pod metrics that the runtime provides.

    Example: pycrictl metricdescs
    """
    from pycrictl._proto import cri_pb2
    from pycrictl.show.list_format import DOCUMENT_FORMATS, ListFormat

    chosen = ListFormat(output or "json", name="descriptors", formats=DOCUMENT_FORMATS)
    with app.open_client("runtime") as client:
        answer = client.call("ListMetricDescriptors", cri_pb2.ListMetricDescriptorsRequest())
    chosen.write(answer.descriptors, None, app.env.stdout)
