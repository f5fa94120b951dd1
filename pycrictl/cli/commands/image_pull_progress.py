"""``pycrictl image-pull-progress``."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from pycrictl.base import noderoot
from pycrictl.base.errors import UsageError
from pycrictl.cli import complete, list_options, options
from pycrictl.cli.admin_socket import DEFAULT, AdminSocket, client_of, proxy_of
from pycrictl.cli.context import AppContext
from pycrictl.cli.pulling import CredentialOptions
from pycrictl.kube.node_pods import NodePods
from pycrictl.node import journal
from pycrictl.pulls.sources.endings import Pace
from pycrictl.pulls.sources.node_watch import NodeWatch
from pycrictl.show.displays.pull_lines import open_display


@options.with_records
def image_pull_progress(
    ctx: typer.Context,
    *,
    pod: options.AnyPod = None,
    container: Annotated[
        str | None,
        typer.Option(
            "--container",
            "-c",
            metavar="CONTAINER",
            help="Only pulls for this container.",
            autocompletion=complete.containers,
        ),
    ] = None,
    namespace: options.InNamespace = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep watching when no pull is left, until Ctrl-C.")
    ] = False,
    progress: options.Progress = "auto",
    credentials: CredentialOptions,
    no_kube: list_options.NoKube = False,
    admin_socket: AdminSocket = DEFAULT,
    interval: options.ProgressInterval = None,
) -> None:
    """Show the progress of image pulls, whoever started them.

    Ends when no pull is left: with status 0, or 1 if a pull failed. Ctrl-C ends the watch (status
    130), never a pull.

    Example: pycrictl image-pull-progress default/web
    """
    app: AppContext = ctx.obj
    if namespace is not None and pod is None:
        raise UsageError("--namespace needs the name of a pod")
    named_pod, named_container = options.named(pod, "pod"), options.named(container, "container")
    outlet = app.outlet(progress, stdout="progress")
    display = open_display(outlet)
    pace = Pace(interval_s=interval or outlet.interval_s, follow=follow)
    root = Path(noderoot.directory())
    with ExitStack() as stack:
        client = stack.enter_context(app.open_client("runtime"))
        stack.callback(display.close)
        on_node = proxy_of(client, admin_socket)
        proxy = stack.enter_context(client_of(on_node, client)) if on_node is not None else None
        NodeWatch(
            client=client,
            sink=display,
            pace=pace,
            pod=options.qualified(named_pod, namespace=namespace),
            container=named_container,
            proxy=proxy,
            pods=None if no_kube else NodePods(root=root),
            read_journal=partial(journal.read, root=root),
            keyring=credentials.keyring(app),
        ).run()
