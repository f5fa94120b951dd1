"""``pycrictl doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pycrictl import noderoot
from pycrictl.cli import list_options, options
from pycrictl.cli.admin_socket import DEFAULT, AdminSocket, find_proxy
from pycrictl.cli.context import AppContext
from pycrictl.cri.inspection.status import checked
from pycrictl.diagnosis.collect_node import NodeCollector
from pycrictl.diagnosis.node import document
from pycrictl.errors import ConnectError
from pycrictl.show import diagnosis_text
from pycrictl.show.inspect_format import InspectFormat


def doctor(
    ctx: typer.Context,
    registry: Annotated[
        list[str] | None,
        typer.Option(
            "--registry",
            metavar="HOST[/REPO]",
            help="Try the way to this registry; repeatable (default: those of the images).",
        ),
    ] = None,
    no_registry: Annotated[
        bool, typer.Option("--no-registry", help="Do not try the ways to registries.")
    ] = False,
    output: list_options.InspectOutput = "table",
    template: list_options.Template = "",
    admin_socket: AdminSocket = DEFAULT,
) -> None:
    """Examine the node: runtime, disks, clock, settings, proxy, leftovers, registries.

    Findings are ordered by weight, each with what to do. Exits with 1 if one is serious.

    Example: pycrictl doctor --registry registry.example.com/shop/web
    """
    app: AppContext = ctx.obj

    chosen = InspectFormat(output, template=template)
    collector = NodeCollector(checked(options.split_list(registry), "registry"))
    try:
        with app.open_clients(needs_images=True) as (client, images):
            collector.ask_runtime(client, images)
    except ConnectError as exc:
        collector.no_runtime(exc.message)
    collector.look_at_host(Path(noderoot.directory()))
    if (proxy := find_proxy(admin_socket)) is not None:
        collector.ask_proxy(proxy.listen, proxy.upstream, proxy.status)
    if not no_registry:
        collector.try_registries()
    found = document(collector.facts())
    if chosen.is_table:
        diagnosis_text.write_node(found, app.env.stdout, app.env.columns)
    else:
        chosen.write_document(found, app.env.stdout)
    if found["serious"]:
        raise typer.Exit(1)
