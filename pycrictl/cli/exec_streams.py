"""The streams of ``exec``, with everything that only streams need."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pycrictl.base.errors import PycrictlError
from pycrictl.cli import stream_options
from pycrictl.cli.context import AppContext
from pycrictl.cli.persona import Persona
from pycrictl.diagnosis.error_causes import shortened
from pycrictl.runtime.cri import sessions
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.lists.lookup import ObjectRef
from pycrictl.runtime.cri.sessions import Outcome
from pycrictl.streams.remote_command import (
    CommandMissing,
    CommandRefused,
    Transport,
    not_started,
    stream_all,
)
from pycrictl.streams.wire.command import ExitReported, Streams

if TYPE_CHECKING:
    from pycrictl.streams.target import TlsFiles


def run_streams(
    app: AppContext,
    client: CriClient,
    targets: Sequence[ObjectRef],
    command: Sequence[str],
    *,
    stdin: bool,
    tty: bool,
    transport: Transport,
    tls: TlsFiles | None,
) -> list[Outcome]:
    """Run a command in containers at the same time, connected to our own standard streams."""
    ask = partial(sessions.exec_url, client, command=command, stdin=stdin, tty=tty)
    with stream_options.first_signal_ignored(app.persona, tty=tty) as spares:
        outcomes = stream_all(
            app.env,
            [partial(ask, target.id, shown=target.shown) for target in targets],
            Streams(stdin=stdin, stderr=not tty, tty=tty),
            wanted=transport,
            timeout_s=client.timeout_s,
            tls=tls,
            spares=spares,
        )
    return [_outcome(*pair, app.persona) for pair in zip(targets, outcomes, strict=True)]


def _outcome(
    target: ObjectRef, outcome: ExitReported | PycrictlError | None, persona: Persona
) -> Outcome:
    if not isinstance(outcome, ExitReported):
        return outcome
    if outcome.exit_code is not None:
        return outcome.exit_code
    what = sessions.running(target.shown)
    error = not_started(what, outcome)
    if isinstance(error, CommandMissing | CommandRefused) and not persona.is_plain:
        error.message = f"{what}: {shortened(error.details)}"
    return error
