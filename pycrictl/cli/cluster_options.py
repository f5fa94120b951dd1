"""The options by which kubectl's plugins select pods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from pycrictl.cli import options
from pycrictl.cluster.kubectl.pod_selection import Asked

Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace", "-n", metavar="NAMESPACE", help="Namespace (default: kubectl's own)."
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

    def asked(self, node: str | None = None) -> Asked:
        asked = Asked(
            tuple(options.named(name, "pod") for name in self.names or ()),
            options.named(self.selector, "label selector"),
            options.named(self.namespace, "namespace"),
            self.all_namespaces,
            options.named(node, "node"),
        )
        asked.check()
        return asked
