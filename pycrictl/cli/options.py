"""Options that several commands share, and parsers of crictl's value types.

Each shared option is an ``Annotated`` alias, which defines its spelling and help text once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast, get_type_hints

import typer

from pycrictl.base import units
from pycrictl.base.errors import MissingArgument, UsageError
from pycrictl.cli import complete
from pycrictl.show.displays import Mode

if TYPE_CHECKING:
    from pycrictl.cli.context import AppContext

T = TypeVar("T")
Command = Callable[..., None]


def with_records(command: Command) -> Command:
    """Return the command with each parameter that is a record replaced by the record's fields.

    A record is a dataclass whose fields are options, declared like parameters of a command.
    """
    taken = inspect.signature(command, eval_str=True).parameters.values()
    records: dict[str, Any] = {
        param.name: param.annotation for param in taken if is_dataclass(param.annotation)
    }

    @wraps(command)
    def call(**given: object) -> None:
        for name, record in records.items():
            given[name] = record(**{param.name: given.pop(param.name) for param in fields(record)})
        command(**given)

    parameters: list[inspect.Parameter] = []
    for param in taken:
        if param.name in records:
            hints = get_type_hints(param.annotation, include_extras=True)
            parameters += [
                param.replace(
                    name=option.name, annotation=hints[option.name], default=option.default
                )
                for option in fields(param.annotation)
            ]
        else:
            parameters.append(param)
    parameters = [param.replace(kind=inspect.Parameter.KEYWORD_ONLY) for param in parameters]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call


def parser(read: Callable[[str], T]) -> Callable[[Any], T]:
    """Return a parser for Typer, made from a function that raises ValueError."""

    def parse(given: Any) -> T:
        if not isinstance(given, str):
            return cast("T", given)  # Typer also parses default values
        try:
            return read(given)
        except ValueError as exc:
            raise typer.BadParameter(str(exc)) from None

    return parse


def _natural(text: str) -> int:
    number = units.parse_int(text)
    if number < 0:
        raise ValueError(f"{units.quote(text)} is negative")
    return number


def _duration(text: str) -> float:
    seconds = units.parse_duration(text)
    if seconds < 0:
        raise ValueError("it must not be negative")
    return seconds


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = units.parse_duration(text)
    if not 0.05 <= seconds <= 3600:
        raise ValueError("an interval must be from 0.05 to 3600 seconds")
    return seconds


duration = parser(_duration)
"""Parses a Go duration into seconds."""

integer = parser(units.parse_int)
"""Parses an integer in Go's spellings."""

natural = parser(_natural)
"""Parses an integer that is not negative."""

size = parser(units.parse_size)
"""Parses a size with a unit into bytes."""

interval = parser(_interval)
"""Parses a polling interval into seconds: a number or a Go duration."""

int_option: Any = partial(typer.Option, parser=integer, metavar="INT")
duration_option: Any = partial(typer.Option, parser=duration, metavar="DURATION")
seconds_option: Any = partial(typer.Option, parser=interval, metavar="SECONDS")
file_option: Any = partial(typer.Option, metavar="FILE")


def split_list(values: Sequence[str] | None) -> list[str]:
    return [item.strip() for value in values or () for item in value.split(",")]


def split_pairs(app: AppContext, values: Sequence[str] | None, option: str) -> dict[str, str]:
    """Return the ``key=value`` items of a repeatable option; the last value of a key counts."""
    pairs: dict[str, str] = {}
    for item in split_list(values):
        key, equals, value = item.partition("=")
        is_refused = "=" in value and app.persona.is_crictl
        if not equals or not key or is_refused:
            raise UsageError(f'invalid value for {option}: "{item}" is not KEY=VALUE')
        pairs[key] = value
    return pairs


def named(name: str | None, kind: str) -> str:
    """Return a name, empty for None; refuse an empty one, which would select everything."""
    if name == "":
        raise UsageError(f"the name of the {kind} is empty", hint="is a script's variable not set?")
    return name or ""


def all_named(names: Sequence[str] | None, kind: str) -> list[str]:
    """Return names; refuse an empty one among them."""
    if "" in (names or ()):
        raise UsageError(f"an empty {kind} name was given", hint="is a script's variable not set?")
    return list(names or ())


def some_named(names: Sequence[str] | None, kind: str) -> list[str]:
    if not names:
        raise MissingArgument(f"no {kind} is named")
    return all_named(names, kind)


def formats(names: Sequence[str]) -> Any:
    known = ["".join(name.partition("=")[:2]) for name in names]
    return typer.Option(
        "--output",
        "-o",
        metavar="|".join(names),
        help="Output format.",
        autocompletion=complete.words(*known),
    )


def containers(completer: complete.Completer) -> Any:
    return typer.Argument(
        metavar="CONTAINER...", help="IDs or names of containers.", autocompletion=completer
    )


Progress = Annotated[
    Mode, typer.Option("--progress", help="How to show progress; auto shows bars on a terminal.")
]
ProgressInterval = Annotated[
    float | None,
    seconds_option("--interval", help="Polling interval (default: 0.25 for bars, else 1)."),
]

PullTimeout = Annotated[
    float,
    duration_option(
        "--pull-timeout",
        "-pt",
        envvar="CRICTL_PULL_TIMEOUT",
        help="Time limit of each pull (default: none).",
        show_default=False,
    ),
]
CancelTimeout = Annotated[
    float,
    duration_option(
        "--cancel-timeout",
        "-T",
        help="Time limit of each call, instead of --timeout.",
        show_default=False,
    ),
]
RuntimeHandler = Annotated[
    str,
    typer.Option("--runtime", "-r", metavar="HANDLER", help="Runtime handler of the pod sandbox."),
]
PodFile = Annotated[
    str,
    typer.Argument(
        metavar="POD-CONFIG",
        help="Pod configuration, a JSON or YAML file.",
    ),
]
ContainerFile = Annotated[
    str,
    typer.Argument(
        metavar="CONTAINER-CONFIG",
        help="Container configuration, a JSON or YAML file.",
    ),
]
OfContainer = Annotated[
    str | None,
    typer.Option(
        "--container", "-c", metavar="NAME", help="The container in the pod, if a pod is named."
    ),
]
InNamespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", metavar="NAMESPACE", help="The namespace of the pod."),
]


def qualified(word: str, *, container: str | None = None, namespace: str | None = None) -> str:
    """Return a pod's or container's name with what kubectl's options ``-n`` and ``-c`` add."""
    words = named(namespace, "namespace"), word, named(container, "container")
    return "/".join(filter(None, words))


RunningContainer = Annotated[
    str,
    typer.Argument(
        metavar="CONTAINER",
        autocompletion=complete.running_containers,
        help="ID or name of a running container.",
    ),
]
Pod = Annotated[
    str, typer.Argument(metavar="POD", autocompletion=complete.pods, help="ID or name of a pod.")
]
AnyPod = Annotated[
    str | None,
    typer.Argument(
        metavar="[POD]",
        autocompletion=complete.pods,
        help="ID, start of an ID, name, or NAMESPACE/NAME (default: all).",
    ),
]
PodIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="POD...", autocompletion=complete.pods, help="IDs or names of pods."),
]
Force = Annotated[bool, typer.Option("--force", "-f", help="Stop running ones first.")]
