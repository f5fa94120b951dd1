"""Candidates from a cluster for kubectl's plugins: runs kubectl with the options typed so far."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from pycrictl.base.errors import PycrictlError
from pycrictl.base.units import escape
from pycrictl.cli import options
from pycrictl.cli.plugins import COMPLETION_LIMIT_S
from pycrictl.cluster.kubectl.pod_selection import Asked
from pycrictl.cluster.kubectl.program import Kubectl

Known = list[tuple[str, str]]
"""Names and their descriptions."""

_NAMES: Final = (
    "--output=jsonpath={range .items[*]}{.metadata.name}{'\\t'}{.status.phase}{'\\n'}{end}"
)
_BARE_NAMES: Final = "--output=jsonpath={range .items[*]}{.metadata.name}{'\\n'}{end}"
_CONTAINERS: Final = (
    "--output=jsonpath={range .spec.initContainers[*]}{.name}{'\\t'}{.image}{'\\n'}{end}"
    "{range .spec.containers[*]}{.name}{'\\t'}{.image}{'\\n'}{end}"
)
_TYPES: Final = ("daemonset", "deployment", "job", "replicaset", "service", "statefulset")


def namespaces(ctx: typer.Context, incomplete: str) -> Known:
    return _asked(ctx, "get", "namespaces", _NAMES)


def nodes(ctx: typer.Context, incomplete: str) -> Known:
    return _asked(ctx, "get", "nodes", _BARE_NAMES)


def workloads(ctx: typer.Context, incomplete: str) -> Known:
    if "/" in incomplete:
        kind = incomplete.partition("/")[0]
        return [
            (f"{kind}/{name}", about)
            for name, about in _asked(ctx, "get", kind, *_namespace(ctx), _NAMES)
        ]
    kinds = [(f"{kind}/", "") for kind in _TYPES if incomplete]
    return [*_asked(ctx, "get", "pods", *_namespace(ctx), _NAMES), *kinds]


def pod_paths(ctx: typer.Context, incomplete: str) -> Known:
    """Return pods as ``POD:`` or ``NAMESPACE/POD:``, the beginning of POD:PATH."""
    if incomplete.startswith(("/", ".")) or ":" in incomplete:
        return []
    namespace, slash, _ = incomplete.rpartition("/")
    where = [f"--namespace={namespace}"] if slash else _namespace(ctx)
    return [
        (f"{namespace}{slash}{name}:", about)
        for name, about in _asked(ctx, "get", "pods", *where, _NAMES)
    ]


def containers(ctx: typer.Context, incomplete: str) -> Known:
    given = [*(ctx.params.get("names") or ()), *_places(ctx)]
    if not given:
        return []
    namespace, slash, pod = given[0].rpartition("/")
    where = [f"--namespace={namespace}"] if slash else _namespace(ctx)
    return _asked(ctx, "get", "pod", pod, *where, _CONTAINERS)


Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAMESPACE",
        help="Namespace (default: kubectl's own).",
        autocompletion=namespaces,
    ),
]


@dataclass(frozen=True, slots=True)
class Selection:
    """The arguments and options that select pods of a cluster."""

    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[POD|TYPE/NAME...]",
            help="Pods or workloads, such as deployment/web (default: all pods of the namespace).",
            autocompletion=workloads,
        ),
    ] = None
    namespace: Namespace = None
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Pods of all namespaces.")
    ] = False
    selector: Annotated[
        str | None,
        typer.Option("--selector", "-l", metavar="LABELS", help="Only pods with these labels."),
    ] = None

    def asked(self, node: str | None = None, container: str | None = None) -> Asked:
        asked = Asked(
            tuple(options.named(name, "pod") for name in self.names or ()),
            options.named(self.selector, "label selector"),
            options.named(self.namespace, "namespace"),
            self.all_namespaces,
            options.named(node, "node"),
            options.named(container, "container"),
        )
        asked.check()
        return asked


def _namespace(ctx: typer.Context) -> list[str]:
    given = ctx.params.get("namespace")
    return [f"--namespace={given}"] if given else []


def _places(ctx: typer.Context) -> Iterator[str]:
    for path in ctx.params.get("paths") or ():
        pod, colon, _ = path.partition(":")
        if colon:
            yield pod


def _asked(ctx: typer.Context, *words: str) -> Known:
    kubectl = Kubectl(
        [f"--request-timeout={COMPLETION_LIMIT_S:g}s", *ctx.obj.handed_on], lambda text: None
    )
    try:
        lines = kubectl.output(*words).decode(errors="replace").splitlines()
    except PycrictlError:  # completion shows no errors
        return []
    pairs = [line.partition("\t") for line in lines]
    return [
        (name, escape(about))
        for name, _, about in pairs
        if name and name != "NAME" and escape(name) == name
    ]
