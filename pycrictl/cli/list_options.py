"""Options shared by the commands that list, inspect and measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TextIO

import typer

from pycrictl._proto import cri_pb2
from pycrictl.base.units import parse_int
from pycrictl.cli import complete, options
from pycrictl.cli.context import AppContext
from pycrictl.runtime.cri.lists import queries
from pycrictl.show.columns import Column, sort_paths
from pycrictl.show.formats import (
    INSPECT_FORMATS,
    LIST_FORMATS,
    OUTPUT_FORMATS,
    Format,
    ListFormat,
    Views,
)

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from pycrictl.diagnosis.pod import Overview

LIST_PAUSE_S: Final = 1.0
"""Pause between two polls of a watched list."""

STATS_PAUSE_S: Final = 0.5
"""Pause between two measurements with --watch, in addition to their own duration."""


def sort_by(columns: Sequence[Column], example: str) -> Any:
    paths = sort_paths(columns)
    known = [heading for heading in paths if " " not in heading]
    return typer.Option(
        "--sort-by",
        metavar="COLUMN",
        help=f"Sort by a column ({example}) or a field ({paths[example]}); a leading - reverses "
        "the order.",
        autocompletion=complete.words(*known),
    )


Output = Annotated[str, options.formats(OUTPUT_FORMATS)]
InspectOutput = Annotated[str, options.formats(INSPECT_FORMATS)]
Template = Annotated[
    str, typer.Option("--template", metavar="TEMPLATE", help="Template for --output go-template.")
]
NoInfo = Annotated[bool, typer.Option("--quiet", "-q", help="Omit runtime-specific information.")]
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="KEY=VALUE", help="Only those with this label; repeatable."),
]


def _last(text: str) -> int:
    try:
        return parse_int(text)
    except ValueError as exc:
        raise ValueError(f"{exc}; name a namespace with --namespace") from None  # kubectl's -n


Last = Annotated[
    int,
    options.int_option(
        "--last",
        "-n",
        parser=options.parser(_last),
        help="Only the N newest, in any state unless --state is given; 0: no limit.",
    ),
]
Latest = Annotated[bool, typer.Option("--latest", "-l", help="The same as --last 1.")]
Name = Annotated[
    str, typer.Option("--name", metavar="REGEX", help="Only those with a matching name.")
]
Namespace = Annotated[
    str,
    typer.Option("--namespace", metavar="REGEX", help="Only those in a matching pod namespace."),
]
PodId = Annotated[
    str,
    typer.Option(
        "--pod",
        "-p",
        metavar="POD",
        autocompletion=complete.pods,
        help="Only those of this pod sandbox.",
    ),
]
ContainerId = Annotated[
    str,
    typer.Option(
        "--id",
        metavar="CONTAINER",
        autocompletion=complete.containers,
        help="Only the container with this ID or name.",
    ),
]
SandboxId = Annotated[
    str,
    typer.Option(
        "--id",
        metavar="POD",
        autocompletion=complete.pods,
        help="Only the pod sandbox with this ID or name.",
    ),
]
ContainerState = Annotated[
    Literal["created", "running", "exited", "unknown"] | None,
    typer.Option("--state", "-s", case_sensitive=False, help="Only those in this state."),
]
PodState = Annotated[
    Literal["ready", "notready"] | None,
    typer.Option("--state", "-s", case_sensitive=False, help="Only those in this state."),
]


@dataclass(frozen=True, slots=True)
class ContainerSelection:
    """The options that select containers, without states."""

    image: OfImage = ""
    labels: Labels = None
    last: Last = 0
    latest: Latest = False
    name: Name = ""
    pod: PodId = ""

    @property
    def is_given(self) -> bool:
        return any(asdict(self).values())

    def query(
        self, app: AppContext, state: queries.ContainerState | None, **more: Any
    ) -> queries.Query[cri_pb2.ContainerFilter]:
        """Return the query; ``more`` are further conditions of ``queries.container_query``."""
        labels = options.split_pairs(app, self.labels, "--label")
        return queries.container_query(**{**asdict(self), "labels": labels}, state=state, **more)


@dataclass(frozen=True, slots=True)
class PodSelection:
    """The options that select pod sandboxes."""

    labels: Labels = None
    last: Last = 0
    latest: Latest = False
    name: Name = ""
    namespace: Namespace = ""
    state: PodState = None

    def query(self, app: AppContext, pod_id: str = "") -> queries.Query[cri_pb2.PodSandboxFilter]:
        labels = options.split_pairs(app, self.labels, "--label")
        return queries.pod_query(**{**asdict(self), "labels": labels}, pod_id=pod_id)


AllStates = Annotated[
    bool,
    typer.Option("--all", "-a", help="Include containers in any state, not only running ones."),
]
OfImage = Annotated[
    str,
    typer.Option(
        "--image",
        metavar="IMAGE",
        autocompletion=complete.images,
        help="Only those created from this image.",
    ),
]
ImageFilters = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        "-f",
        metavar="NAME=VALUE",
        help="dangling=true|false, reference=REGEX, before=IMAGE or since=IMAGE; repeatable.",
        autocompletion=complete.words(
            "dangling=true", "dangling=false", "reference=", "before=", "since="
        ),
    ),
]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")]
NoKube = Annotated[bool, typer.Option("--no-kube", help="Do not query the API server about pods.")]


@dataclass(frozen=True, slots=True)
class ListForm:
    """The options about how ``ps``, ``pods`` and ``images`` show a list."""

    no_headers: Annotated[bool, typer.Option("--no-headers", help="Omit the header line.")] = False
    no_trunc: Annotated[bool, typer.Option("--no-trunc", help="Show full IDs and digests.")] = False
    output: Annotated[str, options.formats(LIST_FORMATS)] = "table"
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print IDs only.")] = False
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print each item in detail.")] = (
        False
    )
    watch: Watch = False

    def format(
        self, name: str, columns: Sequence[Column], sort_by: str, output: str | None = None
    ) -> ListFormat:
        return ListFormat(
            self.output if output is None else output,
            name=name,
            quiet=self.quiet,
            verbose=self.verbose,
            sort_by=sort_by,
            header=not self.no_headers,
            columns=columns,
        )

    def show(
        self,
        app: AppContext,
        fetch: Callable[[], Sequence[Message]],
        chosen: ListFormat,
        views: Views,
    ) -> None:
        """Show a list, once or until Ctrl-C. As in crictl, an empty one is not a failure."""

        def write(listed: Sequence[Message], out: TextIO) -> None:
            chosen.write(listed, views, out, 0 if self.no_trunc else app.columns)

        if self.watch:
            with app.until_interrupted() as viewer:
                viewer.follow(fetch, write, pause_s=LIST_PAUSE_S)
            return
        write(fetch(), app.env.stdout)


def write_diagnosis(
    app: AppContext, chosen: Format, document: Any, write: Callable[..., None]
) -> None:
    if chosen.is_table:
        write(document, app.env.stdout, app.env.columns, is_coloured=app.is_coloured)
    else:
        chosen.write_document(document, app.env.stdout)


def show_survey(
    app: AppContext,
    chosen: Format,
    overview: Callable[[], Overview],
    *,
    watch_pause_s: float | None,
    is_named: bool = False,
) -> None:
    """Show the problems of pods: until Ctrl-C, or once, with exit status 1 if there are any.

    A single pod that was selected by name (``is_named``) is shown in full.
    """
    from pycrictl.diagnosis.pod import document_of, survey_document  # noqa: PLC0415 - not for lists
    from pycrictl.show.diagnosis_text import write_pod, write_pods  # noqa: PLC0415 - the same

    def show(survey: Any, out: TextIO) -> None:
        write_pods(survey, out, app.env.columns, is_coloured=app.is_coloured)

    if watch_pause_s is not None:
        with app.until_interrupted() as viewer:
            viewer.follow(lambda: survey_document(overview()), show, pause_s=watch_pause_s)
        return
    seen = overview()
    if is_named and len(seen.reports) == 1:
        write_diagnosis(app, chosen, document_of(seen.reports[0]), write_pod)
    else:
        write_diagnosis(app, chosen, survey_document(seen), write_pods)
    if any(report.is_sick for report in seen.reports):
        raise typer.Exit(1)
