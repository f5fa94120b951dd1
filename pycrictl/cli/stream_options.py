"""Options shared by the commands with streams, and how they handle signals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pycrictl.base.environ import Environment
from pycrictl.base.errors import ExitCode, UsageError
from pycrictl.base.signals import Terminated
from pycrictl.cli import options
from pycrictl.cli.persona import Persona

if TYPE_CHECKING:
    from pycrictl.streams.target import TlsFiles

StreamTransport = Annotated[
    Literal["spdy", "websocket"],
    typer.Option("--transport", "-r", help="Streaming protocol."),
]


@dataclass(frozen=True, slots=True)
class TlsOptions:
    tls_ca: Annotated[
        str,
        options.file_option("--tls-ca", help="CA certificates that verify the stream's server."),
    ] = ""
    tls_cert: Annotated[
        str, options.file_option("--tls-cert", help="Client certificate for the stream.")
    ] = ""
    tls_key: Annotated[
        str, options.file_option("--tls-key", help="Private key of the client certificate.")
    ] = ""
    tls_name: Annotated[
        str,
        typer.Option(
            "--tls-sni",
            "--tls-server-name",
            metavar="NAME",
            help="Server name to verify in the stream's certificate.",
        ),
    ] = "localhost"

    def files(self, persona: Persona) -> TlsFiles | None:
        """Read the files for a stream over TLS; without any, certificates are not verified."""
        if not (self.tls_ca or self.tls_cert or self.tls_key):
            return None
        if persona.is_crictl and not (self.tls_cert and self.tls_key):
            raise UsageError("--tls-cert and --tls-key are required for streams over TLS")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise UsageError("--tls-cert and --tls-key go together")
        from pycrictl.streams.target import TlsFiles  # noqa: PLC0415 - rare

        return TlsFiles(
            ca=self.tls_ca or None,
            cert=self.tls_cert or None,
            key=self.tls_key or None,
            server_name=self.tls_name or None,
            is_required=not persona.is_crictl,
        )


def check_terminal(env: Environment, *, tty: bool, stdin: bool, stdin_flag: str) -> None:
    if tty and not stdin:
        raise UsageError(f"--tty needs {stdin_flag}")
    if tty and not env.stdin_is_terminal:
        raise UsageError("--tty needs a terminal as standard input")


@contextmanager
def first_signal_ignored(persona: Persona, *, tty: bool) -> Iterator[Callable[[int], bool] | None]:
    """Ignore the first signal of a stream and end silently at the next, as crictl does.

    With a terminal, crictl ends at the first signal, with status 1. Yields a predicate: whether a
    signal to an open stream is ignored; None if no signal ever is.
    """
    spared: list[int] = []

    def spares(number: int) -> bool:
        if spared or not persona.handles_signal(number):
            return False
        spared.append(number)
        return True

    is_raw = tty and persona.is_crictl
    try:
        yield spares if persona.is_crictl and not tty else None
    except (KeyboardInterrupt, Terminated):
        if not spared and not is_raw:
            raise
        raise typer.Exit(ExitCode.FAILURE) from None
