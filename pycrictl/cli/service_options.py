"""What the options of the services ``proxy`` and ``agent`` have in common."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from pycrictl.base.address import Address, parse_address
from pycrictl.base.config import socket_path
from pycrictl.base.errors import UsageError
from pycrictl.base.servicelog import LogLevel, write_to
from pycrictl.cli import complete, options
from pycrictl.cli.context import AppContext


def _socket(text: str) -> str:
    try:
        return str(Path(socket_path(text, "endpoint")).absolute())
    except UsageError as exc:
        raise ValueError(exc.message) from None


socket_option: Any = partial(
    typer.Option,
    parser=options.parser(_socket),
    metavar="SOCKET",
    autocompletion=complete.sockets,
)
address_option: Any = partial(
    typer.Option, parser=options.parser(parse_address), metavar="IP:PORT", show_default=False
)
count_option: Any = partial(typer.Option, parser=options.natural, metavar="N")
size_option: Any = partial(typer.Option, parser=options.size, metavar="SIZE", show_default=False)

CopySizeLimit = Annotated[
    int | None,
    size_option(
        "--container-copy-size-limit", help="Largest copy, such as 10Gi (default: 0, no limit)."
    ),
]
CopiesPerPod = Annotated[
    int | None,
    count_option(
        "--container-copies-per-pod",
        help="Make at most N copies per pod at once (default: 0, no limit).",
    ),
]
MetricsListen = Annotated[
    Address | None,
    address_option(
        "--metrics-listen",
        help="Serve /metrics for Prometheus, /livez and /readyz on this address, without TLS,"
        " for everyone (default: nowhere).",
    ),
]


@dataclass(frozen=True, slots=True)
class LogOptions:
    log_level: Annotated[
        LogLevel | None,
        typer.Option(
            "--log-level", help="Minimum level to log (default: info; debug with --debug)."
        ),
    ] = None

    def begin(self, app: AppContext) -> None:
        level = self.log_level or (LogLevel.DEBUG if app.flags.debug else LogLevel.INFO)
        write_to(app.env.stderr, level, app.env.environ)
