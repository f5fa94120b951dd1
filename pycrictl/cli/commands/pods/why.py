"""``pycrictl why``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from pycrictl import noderoot
from pycrictl.cli import complete, list_options
from pycrictl.cli.admin_socket import DEFAULT, AdminSocket, proxy_of
from pycrictl.cli.context import AppContext
from pycrictl.cri.inspection.status import checked
from pycrictl.diagnosis.collect import Sources, collect_pod
from pycrictl.diagnosis.pod import document
from pycrictl.kube.node import NodePods
from pycrictl.logs import journal
from pycrictl.show import diagnosis_text
from pycrictl.show.inspect_format import InspectFormat


def why(
    ctx: typer.Context,
    pod: Annotated[
        str,
        typer.Argument(
            metavar="POD",
            autocompletion=complete.pods,
            help="ID, start of an ID, name, or NAMESPACE/NAME.",
        ),
    ],
    output: list_options.InspectOutput = "table",
    template: list_options.Template = "",
    no_kube: Annotated[
        bool, typer.Option("--no-kube", help="Do not ask the API server what the pod waits for.")
    ] = False,
    admin_socket: AdminSocket = DEFAULT,
) -> None:
    """Show why a pod is not running.

    The first line is the most likely cause. Exits with 0 if the pod is running or has finished,
    else with 1.

    Example: pycrictl why default/web
    """
    app: AppContext = ctx.obj
    chosen = InspectFormat(output, template=template)
    checked([pod], "pod")
    root = Path(noderoot.directory())
    with app.open_clients(needs_images=True) as (client, images):
        proxy = proxy_of(client, admin_socket)
        sources = Sources(
            None if no_kube else NodePods(root=root),
            partial(journal.read, root=root, timeout_s=journal.PATIENCE_S),
            proxy.status if proxy is not None else None,
        )
        found = document(collect_pod(client, images, pod, sources, wall_s=app.env.wall_clock))
    if chosen.is_table:
        diagnosis_text.write_pod(found, app.env.stdout, app.env.columns)
    else:
        chosen.write_document(found, app.env.stdout)
    if not found["healthy"]:
        raise typer.Exit(1)
