"""What the commands that stream have in common: options, and what they are turned into."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from pycrictl.errors import PycrictlError, RuntimeFault, UsageError

if TYPE_CHECKING:
    from pycrictl.environ import Environment
    from pycrictl.streaming.session import Choice
    from pycrictl.streaming.target import TlsFiles
    from pycrictl.wire.command import ExitReported

TlsCa = Annotated[
    str, typer.Option("--tls-ca", metavar="FILE", help="Certificates to verify the stream with.")
]
TlsCert = Annotated[
    str, typer.Option("--tls-cert", metavar="FILE", help="Our certificate for the stream.")
]
TlsKey = Annotated[str, typer.Option("--tls-key", metavar="FILE", help="Its private key.")]
TlsName = Annotated[
    str,
    typer.Option(
        "--tls-sni",
        "--tls-server-name",
        metavar="NAME",
        help="Name that the stream's certificate must have, when it is verified.",
    ),
]
TLS_NAME: Final = "localhost"

StreamTransport = Annotated[
    str,
    typer.Option(
        "--transport",
        "-r",
        metavar="auto|spdy|websocket",
        help="How to stream; auto takes what can end the input, or what is newest.",
    ),
]


class CommandMissing(RuntimeFault):
    """The command is not in the container."""

    reference = "command-missing"
    exit_code = 127


class CommandRefused(RuntimeFault):
    """The command is there but cannot be executed."""

    reference = "command-refused"
    exit_code = 126


def check_transport(given: str) -> Choice:
    """The transport that was named.

    Raises:
        UsageError: there is none of that name.
    """
    choices: dict[str, Choice] = {"auto": "auto", "spdy": "spdy", "websocket": "websocket"}
    if given not in choices:
        raise UsageError(
            f'unknown transport "{given}"', hint=f"transports are {', '.join(choices)}"
        )
    return choices[given]


def tls_files(*, ca: str, cert: str, key: str, name: str) -> TlsFiles | None:
    """The files for a stream over TLS; without any, certificates are not verified.

    Raises:
        UsageError: a certificate without its key, or the other way round.
    """
    if bool(cert) != bool(key):
        raise UsageError("--tls-cert and --tls-key go together")
    if not (ca or cert):
        return None
    from pycrictl.streaming.target import TlsFiles

    return TlsFiles(ca=ca or None, cert=cert or None, key=key or None, server_name=name or None)


def check_terminal(env: Environment, *, tty: bool, stdin: bool, stdin_flag: str) -> None:
    """Refuses a terminal for the command where we have none.

    Raises:
        UsageError: no standard input, or it is not a terminal.
    """
    if tty and not stdin:
        raise UsageError(f"--tty needs {stdin_flag}")
    if tty and not env.stdin_is_terminal:
        raise UsageError("--tty needs a terminal as standard input")


def not_started(what: str, outcome: ExitReported) -> PycrictlError:
    """The error of a command that did not start, with the exit status that shells have for it."""
    details = outcome.message
    message = f"{what}: {details}"
    if "executable file not found" in details or "no such file or directory" in details:
        return CommandMissing(message, details=details)
    if "permission denied" in details:
        return CommandRefused(message, details=details)
    return RuntimeFault(message, details=details)
