"""What the commands that list or inspect have in common: options, and showing again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from pycrictl.cli.options import INTEGER, check_output
from pycrictl.errors import NotFound

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from pycrictl.cli.context import AppContext
    from pycrictl.cri.calls.client import CriClient
    from pycrictl.show.lists import ListFormat, Views

T = TypeVar("T")

LOOK_INTERVAL_S: Final = 1.0
"""Pause between two looks at a list that is watched."""

STATS_PAUSE_S: Final = 0.5
"""Pause between two measurements that are watched, beside the time that each takes."""

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


@contextmanager
def both_clients(app: AppContext, *, needs_images: bool) -> Iterator[tuple[CriClient, CriClient]]:
    """Clients of the runtime service and of the image service.

    They are one where both are at one socket, and where images are not looked up, so that an image
    service that is out of order disturbs nothing else.
    """
    with app.open_client("runtime") as client:
        if not needs_images or app.config.image_endpoint == app.config.runtime_endpoint:
            yield client, client
        else:
            with app.open_client("image") as images:
                yield client, images


def show_list(
    app: AppContext,
    fetch: Callable[[], Sequence[Message]],
    chosen: ListFormat,
    views: Views,
    *,
    watch: bool,
) -> None:
    """Writes a list, once or as often as it changes.

    On a terminal a list that is watched follows its ages as well; elsewhere it is written as a
    whole after each change.
    """
    if not watch:
        chosen.write(fetch(), views, app.env.stdout)
        return
    previous: Sequence[Message] | None = None
    with app.until_interrupted() as viewer:
        while True:
            found = fetch()
            if viewer.is_in_place or found != previous:
                viewer.show(partial(chosen.write, found, views))
            previous = found
            viewer.pause(LOOK_INTERVAL_S)


def found_any(statuses: Iterator[T], kind: str) -> list[T]:
    """All of them.

    Raises:
        NotFound: there is none.
    """
    found = list(statuses)
    if not found:
        hint = "without IDs those that run are meant; see --all and --state"
        raise NotFound(f"no {kind} is selected", hint=hint if kind == "container" else None)
    return found


def wants_yaml(output: str) -> bool:
    """Whether YAML is wanted where there is but JSON beside it."""
    check_output(output or "json", "json", "yaml")
    return output == "yaml"
