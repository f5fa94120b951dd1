"""Options that several commands share, and the value types of crictl's grammar.

Each shared option is an ``Annotated`` alias, so that its spelling and help text stand once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, TypeVar

from pycrictl import units
from pycrictl.cli import crictl
from pycrictl.cli.declare import Argument, BadParameter, Option
from pycrictl.errors import UsageError

T = TypeVar("T")


def value_of(parse: Callable[[str], T], metavar: str) -> dict[str, Any]:
    """Return the settings of an option whose text ``parse`` reads or refuses (ValueError)."""
    return {"parser": parse, "metavar": metavar}


DURATION: Final = value_of(units.parse_duration, "DURATION")
"""Settings of an option that takes a Go duration; its value is in seconds."""

INTEGER: Final = value_of(units.parse_int, "INT")
"""Settings of an option that takes an integer in Go's spellings."""

COUNT: Final = value_of(units.parse_int, "N")
"""The same, where the help says what is counted."""


def _natural(text: str) -> int:
    number = units.parse_int(text)
    if number < 0:
        raise ValueError(f"{units.quote(text)} is negative")
    return number


NATURAL: Final = value_of(_natural, "N")
"""The same of one that is not negative."""

SIZE: Final = value_of(units.parse_size, "SIZE")
"""Settings of an option that takes a size with a unit; its value is in bytes."""


def _interval(text: str) -> float:
    """Read the seconds between two looks, a number or a Go duration."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = units.parse_duration(text)
    if not 0.05 <= seconds <= 3600:
        raise ValueError("an interval must be from 0.05 to 3600 seconds")
    return seconds


INTERVAL: Final = value_of(_interval, "SECONDS")
"""Settings of an option that takes seconds between two looks."""


def split_list(values: Sequence[str] | None) -> list[str]:
    """Return the items of a repeatable option; each word may hold several, separated by commas."""
    return [item.strip() for value in values or () for item in value.split(",")]


def split_pairs(values: Sequence[str] | None, option: str) -> dict[str, str]:
    """Return the ``key=value`` items of a repeatable option; a repeated key has its last value.

    Raises:
        BadParameter: an item without ``=`` or with an empty key.
    """
    pairs: dict[str, str] = {}
    for item in split_list(values):
        key, equals, value = item.partition("=")
        if not equals or not key or not crictl.takes_value(value):
            raise BadParameter(option, f'"{item}" is not KEY=VALUE')
        pairs[key] = value
    return pairs


def named(name: str | None, kind: str) -> str:
    """Return what was named, empty if nothing was.

    Raises:
        UsageError: the name is empty, which would stand for everything.
    """
    if name == "":
        raise UsageError(f"the name of the {kind} is empty", hint="is a script's variable not set?")
    return name or ""


OUTPUT_FORMATS: Final = ("json", "yaml", "table", "jsonpath=…")
Output = Annotated[
    str,
    Option("--output", "-o", metavar="json|yaml|table|jsonpath=TEMPLATE", help="Output format."),
]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print IDs only.")]
Verbose = Annotated[bool, Option("--verbose", "-v", help="Print the details of each.")]
NoTrunc = Annotated[bool, Option("--no-trunc", help="Do not shorten IDs and digests.")]
Progress = Annotated[
    str,
    Option(
        "--progress",
        metavar="auto|bar|plain|json|none",
        help="How to show progress; auto is bars on a terminal.",
    ),
]
OnlyContainer = Annotated[
    str | None,
    Option("--container", "-c", metavar="CONTAINER", help="Only for this container."),
]
Aggregate = Annotated[bool, Option("--aggregate", help="Show only the total.")]
ProgressInterval = Annotated[
    float | None,
    Option(
        "--interval",
        **INTERVAL,
        help="Pause between two looks (default: 0.25 for bars, else 1).",
        show_default=False,
    ),
]
ClusterNamespace = Annotated[
    str | None,
    Option("--namespace", "-n", metavar="NAMESPACE", help="Namespace (default: kubectl's own)."),
]

NoManifest = Annotated[
    bool,
    Option(
        "--no-manifest",
        help="On CRI-O, do not ask the registry how large the layers are: bytes without percent.",
    ),
]

Auth = Annotated[
    str,
    Option("--auth", envvar="CRICTL_AUTH", metavar="B64", help="Base64 of USER:PASSWORD."),
]
Creds = Annotated[
    str,
    Option(
        "--creds", envvar="CRICTL_CREDS", metavar="USER[:PASSWORD]", help="Credentials for a pull."
    ),
]
Username = Annotated[
    str, Option("--username", "-u", metavar="USER", help="User name; asks for the password.")
]
PullTimeout = Annotated[
    float,
    Option(
        "--pull-timeout",
        "-pt",
        envvar="CRICTL_PULL_TIMEOUT",
        help="Time limit of each pull (default: none).",
        show_default=False,
        **DURATION,
    ),
]
NoPull = Annotated[bool, Option("--no-pull", help="Do not pull the container's images.")]
WithPull = Annotated[bool, Option("--with-pull", help="Pull the container's images.")]
CancelTimeout = Annotated[
    float,
    Option(
        "--cancel-timeout",
        "-T",
        help="Time limit of each call, instead of --timeout.",
        show_default=False,
        **DURATION,
    ),
]
RuntimeHandler = Annotated[
    str,
    Option("--runtime", "-r", metavar="HANDLER", help="Runtime handler of the pod sandbox."),
]
PodFile = Annotated[
    str,
    Argument(
        metavar="POD-CONFIG", help="Pod configuration, a JSON or YAML file.", show_default=False
    ),
]
ContainerFile = Annotated[
    str,
    Argument(
        metavar="CONTAINER-CONFIG",
        help="Container configuration, a JSON or YAML file.",
        show_default=False,
    ),
]
ContainerIds = Annotated[
    list[str] | None,
    Argument(metavar="CONTAINER...", help="IDs or names of containers.", show_default=False),
]
PodIds = Annotated[
    list[str] | None,
    Argument(metavar="POD...", help="IDs or names of pods.", show_default=False),
]
Force = Annotated[bool, Option("--force", "-f", help="Stop it first if it is running.")]
