"""The options that the commands that list, inspect and measure share."""

from __future__ import annotations

from typing import Annotated

import typer

from pycrictl.cli.options import INTEGER, check_output

ListOutput = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        metavar="FORMAT",
        help="json, yaml, table, wide, jsonpath=TEMPLATE or custom-columns=NAME:PATH[,...].",
    ),
]
InspectOutput = Annotated[
    str,
    typer.Option("--output", "-o", metavar="json|yaml|go-template|table", help="Output format."),
]
Template = Annotated[
    str, typer.Option("--template", metavar="TEMPLATE", help="For --output go-template.")
]
NoInfo = Annotated[bool, typer.Option("--quiet", "-q", help="Leave out the runtime's own details.")]
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="KEY=VALUE", help="Only with this label; repeatable."),
]
Last = Annotated[
    int,
    typer.Option("--last", "-n", help="Only the N newest, in any state; 0 is all.", **INTEGER),
]
Latest = Annotated[bool, typer.Option("--latest", "-l", help="Only the newest, in any state.")]
Name = Annotated[
    str, typer.Option("--name", metavar="REGEX", help="Only where it matches the name.")
]
Namespace = Annotated[
    str,
    typer.Option("--namespace", metavar="REGEX", help="Only where it matches the pod's namespace."),
]
PodId = Annotated[
    str, typer.Option("--pod", "-p", metavar="POD-ID", help="Only of this pod sandbox.")
]
ContainerState = Annotated[
    str,
    typer.Option(
        "--state",
        "-s",
        metavar="created|running|exited|unknown",
        help="Only in this state.",
    ),
]
PodState = Annotated[
    str, typer.Option("--state", "-s", metavar="ready|notready", help="Only in this state.")
]
AllStates = Annotated[bool, typer.Option("--all", "-a", help="In every state, not only running.")]
OfImage = Annotated[str, typer.Option("--image", metavar="IMAGE", help="Only made of this image.")]
SortBy = Annotated[
    str,
    typer.Option(
        "--sort-by", metavar="PATH", help="Sort by a field of the JSON, such as .metadata.name."
    ),
]
NoHeaders = Annotated[bool, typer.Option("--no-headers", help="Leave out the headings.")]
ImageFilters = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        "-f",
        metavar="NAME=VALUE",
        help="dangling=true|false, reference=REGEX, before=IMAGE or since=IMAGE; repeatable.",
    ),
]
DocumentOutput = Annotated[
    str, typer.Option("--output", "-o", metavar="json|yaml", help="Output format.")
]
WatchStats = Annotated[
    bool, typer.Option("--watch", "-w", help="Show it again and again, until Ctrl-C.")
]
Watch = Annotated[
    bool, typer.Option("--watch", "-w", help="Show it again when it changes, until Ctrl-C.")
]


def wants_yaml(output: str) -> bool:
    """Whether YAML is wanted where there is but JSON beside it."""
    check_output(output or "json", "json", "yaml")
    return output == "yaml"
