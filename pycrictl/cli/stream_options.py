"""Options that the commands with streams share, and what they are turned into."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from pycrictl.errors import UsageError

if TYPE_CHECKING:
    from pycrictl.environ import Environment
    from pycrictl.streaming.session import Choice
    from pycrictl.streaming.target import TlsFiles

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


def check_transport(given: str) -> Choice:
    """Return the transport that was named.

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
    """Return the files for a stream over TLS; without any, certificates are not verified.

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
    """Refuse a terminal for the command where we have none.

    Raises:
        UsageError: no standard input, or it is not a terminal.
    """
    if tty and not stdin:
        raise UsageError(f"--tty needs {stdin_flag}")
    if tty and not env.stdin_is_terminal:
        raise UsageError("--tty needs a terminal as standard input")
