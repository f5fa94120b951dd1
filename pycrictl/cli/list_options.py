"""The options that the commands that list, inspect and measure share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Final

from pycrictl.cli import crictl
from pycrictl.cli.context import AppContext
from pycrictl.cli.declare import Option
from pycrictl.cli.options import INTEGER
from pycrictl.errors import NotFound, NothingSelected

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from pycrictl.cli.context import AppContext
    from pycrictl.cri.calls.client import CriClient
    from pycrictl.cri.lists.lookup import Kind
    from pycrictl.show.list_format import ListFormat, Views

LIST_PAUSE_S: Final = 1.0
"""Pause between two looks at a watched list."""

STATS_PAUSE_S: Final = 0.5
"""Pause between two watched measurements, beside the time that each takes."""

ListOutput = Annotated[
    str,
    Option(
        "--output",
        "-o",
        metavar="FORMAT",
        help="json, yaml, table, wide, jsonpath=TEMPLATE or custom-columns=NAME:PATH[,...].",
    ),
]
InspectOutput = Annotated[
    str,
    Option(
        "--output",
        "-o",
        metavar="json|yaml|go-template|table|jsonpath=TEMPLATE",
        help="Output format.",
    ),
]
Template = Annotated[
    str, Option("--template", metavar="TEMPLATE", help="For --output go-template.")
]
NoInfo = Annotated[bool, Option("--quiet", "-q", help="Leave out what only this runtime reports.")]
Labels = Annotated[
    list[str] | None,
    Option("--label", metavar="KEY=VALUE", help="Only those with this label; repeatable."),
]
Last = Annotated[
    int,
    Option("--last", "-n", help="Only the N newest, in any state; 0: all.", **INTEGER),
]
Latest = Annotated[bool, Option("--latest", "-l", help="Only the newest, in any state.")]
Name = Annotated[str, Option("--name", metavar="REGEX", help="Only those with a matching name.")]
Namespace = Annotated[
    str,
    Option("--namespace", metavar="REGEX", help="Only those in a matching pod namespace."),
]
PodId = Annotated[str, Option("--pod", "-p", metavar="POD", help="Only those of this pod sandbox.")]
ContainerState = Annotated[
    str,
    Option(
        "--state",
        "-s",
        metavar="created|running|exited|unknown",
        help="Only those in this state.",
    ),
]
PodState = Annotated[
    str, Option("--state", "-s", metavar="ready|notready", help="Only those in this state.")
]
AllStates = Annotated[bool, Option("--all", "-a", help="Include every state, not only running.")]
OfImage = Annotated[
    str, Option("--image", metavar="IMAGE", help="Only those created from this image.")
]
SortBy = Annotated[
    str,
    Option(
        "--sort-by",
        metavar="COLUMN",
        help="Sort by a column, such as created, or a field, .createdAt; with -, descending.",
    ),
]
NoHeaders = Annotated[bool, Option("--no-headers", help="Omit the header line.")]
ImageFilters = Annotated[
    list[str] | None,
    Option(
        "--filter",
        "-f",
        metavar="NAME=VALUE",
        help="dangling=true|false, reference=REGEX, before=IMAGE or since=IMAGE; repeatable.",
    ),
]
DocumentOutput = Annotated[
    str,
    Option("--output", "-o", metavar="json|yaml|jsonpath=TEMPLATE", help="Output format."),
]
WatchStats = Annotated[bool, Option("--watch", "-w", help="Refresh until Ctrl-C.")]
Watch = Annotated[
    bool, Option("--watch", "-w", help="Show it again whenever it changes, until Ctrl-C.")
]


def note_missing(app: AppContext, client: CriClient, *words: tuple[Kind, str]) -> None:
    """Say why a list is empty that was to hold only what belongs to a pod or container.

    crictl's list of what is not there is empty and no failure, which stays so.
    """
    for text in _missing(client, *words):
        app.env.note(text)


def nothing_selected(client: CriClient, pod: str, hint: str) -> NothingSelected:
    """Return the error of options that select no container.

    Args:
        client: of the runtime.
        pod: the value of ``--pod``.
        hint: what to say if there is such a pod.
    """
    return NothingSelected(
        "no container is selected", hint=next(_missing(client, ("pod", pod)), hint)
    )


def _missing(client: CriClient, *words: tuple[Kind, str]) -> Iterator[str]:
    """Yield what is to be said of words that name nothing; under crictl's name nothing."""
    from pycrictl.cri.lists.lookup import Lookup

    if crictl.is_called():
        return
    lookup = Lookup(client)
    for kind, text in words:
        error = lookup.target(text, kind).error if text else None
        if isinstance(error, NotFound):
            yield f"{error.message}: {error.hint}" if error.hint else error.message


def show_list(
    app: AppContext,
    fetch: Callable[[], Sequence[Message]],
    chosen: ListFormat,
    views: Views,
    *,
    watch: bool,
    if_empty: Callable[[], None] | None = None,
) -> None:
    """Write a list, once or as often as it changes.

    Args:
        if_empty: called after a table that is written once and is empty.
    """
    if not watch:
        found = fetch()
        chosen.write(found, views, app.env.stdout)
        if not found and chosen.is_table and if_empty is not None:
            if_empty()
        return
    with app.until_interrupted() as viewer:
        viewer.follow(
            fetch, lambda found, out: chosen.write(found, views, out), pause_s=LIST_PAUSE_S
        )
