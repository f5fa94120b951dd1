"""Diagnoses: ``why`` of pods, ``doctor`` of the node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from pycrictl.base import noderoot
from pycrictl.base.config import socket_path
from pycrictl.base.errors import UsageError
from pycrictl.base.units import quote
from pycrictl.cli import list_options, options
from pycrictl.cli.admin_socket import DEFAULT, AdminSocket, find_proxy, proxy_of
from pycrictl.cli.context import AppContext
from pycrictl.cli.pulling import CredentialOptions
from pycrictl.diagnosis.collect_node import CALL_S, NodeCollector
from pycrictl.diagnosis.node_findings import document as node_document
from pycrictl.diagnosis.pod import Overview
from pycrictl.diagnosis.pod import document as pod_document
from pycrictl.diagnosis.survey import Sources, Survey
from pycrictl.kube.node_pods import NodePods
from pycrictl.node import journal
from pycrictl.pulls.reference import flaw
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.calls.endpoints import open_client
from pycrictl.show import diagnosis_text
from pycrictl.show.formats import Format

WATCH_PAUSE_S: Final = 2.0

Connection = tuple[CriClient, CriClient, Sources]
"""Clients of the runtime and of its images, and the other sources."""


@contextmanager
def connected(
    app: AppContext, admin_socket: str, *, no_kube: bool, journal_s: float = 1.0
) -> Iterator[Connection]:
    """Connect to the sources of a survey.

    ``journal_s`` is the time limit of one read of the journal: on a busy node it may take long.
    """
    root = Path(noderoot.directory())
    with app.open_clients(needs_images=True) as (client, images):
        proxy = proxy_of(client, admin_socket)
        sources = Sources(
            None if no_kube else NodePods(root=root),
            partial(journal.read, root=root, timeout_s=journal_s),
            proxy.status if proxy is not None else None,
        )
        yield client, images, sources


def why(
    ctx: typer.Context,
    pod: options.AnyPod = None,
    namespace: options.InNamespace = None,
    output: list_options.InspectOutput = "table",
    template: list_options.Template = "",
    no_kube: list_options.NoKube = False,
    watch: list_options.Watch = False,
    admin_socket: AdminSocket = DEFAULT,
) -> None:
    """Show why pods are not running.

    The first line is the most likely cause. Without POD, each pod with a problem has a line, most
    severe first. Exits with status 0 if the pod is running or has finished, or if no pod has a
    problem, else 1.

    Example: pycrictl why default/web
    """
    app: AppContext = ctx.obj
    chosen = Format(output, template=template)
    options.named(pod, "pod")
    if watch and (pod is not None or not chosen.is_table):
        raise UsageError("--watch works only with the table of all pods")
    with connected(app, admin_socket, no_kube=no_kube, journal_s=5.0) as connection:
        survey = Survey(*connection, wall_s=app.env.wall_clock)

        def overview() -> Overview:
            seen = survey.pods()
            reports = [item for item in seen.reports if namespace in (None, item.facts.namespace)]
            return seen._replace(reports=reports)

        if pod is None:
            pause_s = WATCH_PAUSE_S if watch else None
            list_options.show_survey(app, chosen, overview, watch_pause_s=pause_s)
            return
        document = pod_document(survey.pod(options.qualified(pod, namespace=namespace)))
    list_options.write_diagnosis(app, chosen, document, diagnosis_text.write_pod)
    if not document["healthy"]:
        raise typer.Exit(1)


@options.with_records
def doctor(
    ctx: typer.Context,
    *,
    registry: Annotated[
        list[str] | None,
        typer.Option(
            "--registry",
            metavar="HOST[/REPO]",
            help="Test the connection to this registry; repeatable (default: the registries of "
            "the node's images).",
        ),
    ] = None,
    no_registry: Annotated[
        bool, typer.Option("--no-registry", help="Skip the registry checks.")
    ] = False,
    credentials: CredentialOptions,
    output: list_options.InspectOutput = "table",
    template: list_options.Template = "",
    admin_socket: AdminSocket = DEFAULT,
) -> None:
    """Examine the node: runtime, disks, clock, settings, proxy, registries.

    Lists findings by severity, each with a remedy. Exits with status 1 if any is serious.

    Example: pycrictl doctor --registry registry.example.com/shop/web
    """
    app: AppContext = ctx.obj

    chosen = Format(output, template=template)
    registries = options.all_named(options.split_list(registry), "registry")
    for name in registries:
        wrong = flaw(name if "/" in name else f"{name}/repository")
        if wrong is not None:
            raise UsageError(f"--registry {quote(name)}: {wrong.text}", hint=wrong.advice)
    collector = NodeCollector(
        registries,
        tries_registries=not no_registry,
        keyring=credentials.keyring(app),
    )
    # No retries: a runtime that is just starting is to be reported, like one that is absent.
    patience_s = min(app.config.timeout_s, CALL_S)
    config = app.config._replace(timeout_s=patience_s, max_retries=0)

    for endpoint, option in (
        (config.runtime_endpoint, "runtime-endpoint"),
        (config.image_endpoint, "image-endpoint"),
        (admin_socket, "admin-socket"),
    ):
        if endpoint is not None:
            socket_path(endpoint, option)

    def connect() -> tuple[CriClient, CriClient]:
        client = open_client(config, "runtime")
        if config.image_endpoint == config.runtime_endpoint:
            return client, client
        return client, open_client(config, "image")

    def ask_proxy() -> dict[str, Any]:
        if (proxy := find_proxy(admin_socket, is_strict=True)) is None:
            return {}
        limit = proxy.status()["limit"]
        return {"proxy": proxy.listen, "proxy_upstream": proxy.upstream, "proxy_limit": limit}

    facts = collector.collect(connect, Path(noderoot.directory()), ask_proxy)
    document = node_document(facts)
    list_options.write_diagnosis(app, chosen, document, diagnosis_text.write_node)
    if document["serious"]:
        raise typer.Exit(1)
