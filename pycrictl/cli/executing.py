"""Runs a command in containers, and tells what came of it in each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pycrictl.cli.stream_options import not_started
from pycrictl.cri import sessions
from pycrictl.environ import Environment
from pycrictl.errors import PycrictlError
from pycrictl.streaming.session import Choice
from pycrictl.streaming.standard import stream_all, write_all
from pycrictl.streaming.target import TlsFiles
from pycrictl.units import quote
from pycrictl.wire.command import ExitReported, Streams

if TYPE_CHECKING:
    from pycrictl.cri.calls.client import CriClient


@dataclass(frozen=True, slots=True)
class Settings:
    """What to run, and how.

    Attributes:
        limit_s: whole seconds until the runtime kills it, for ``run_at_once``; 0 for none.
    """

    command: Sequence[str]
    choice: Choice = "auto"
    tls: TlsFiles | None = None
    stdin: bool = False
    tty: bool = False
    limit_s: int = 0


def run_streams(env: Environment, client: CriClient, ids: Sequence[str], settings: Settings) -> int:
    """Run a command in all containers at once, with live streams; return the exit status.

    What goes wrong in a container is told and does not concern the others. The exit status is the
    first that is not 0, in the order of ``ids``. Standard input is for a single one only.

    Raises:
        OSError: our own output cannot be written.
    """

    def ask_url(container_id: str) -> str:
        return sessions.exec_url(
            client, container_id, settings.command, stdin=settings.stdin, tty=settings.tty
        )

    outcomes = stream_all(
        env,
        [partial(ask_url, container_id) for container_id in ids],
        Streams(stdin=settings.stdin, stderr=not settings.tty, tty=settings.tty),
        choice=settings.choice,
        timeout_s=client.timeout_s,
        tls=settings.tls,
    )
    return _exit_status(env, zip(ids, outcomes, strict=True), several=len(ids) > 1)


def run_at_once(env: Environment, client: CriClient, ids: Sequence[str], settings: Settings) -> int:
    """Run a command in all containers at once and write its whole output when it has ended.

    Exit status and failures are as for ``run_streams``.
    """
    outcomes: list[tuple[str, ExitReported | PycrictlError]] = []
    command, limit_s = settings.command, settings.limit_s
    waits: list[Callable[[], Any]]
    if len(ids) == 1:  # there is nothing to do beside it
        waits = [partial(sessions.exec_sync, client, ids[0], command, limit_s=limit_s)]
    else:
        waits = [
            sessions.start_exec_sync(client, container_id, command, limit_s=limit_s).result
            for container_id in ids
        ]
    for container_id, wait in zip(ids, waits, strict=True):
        outcome: ExitReported | PycrictlError
        try:
            answer = wait()
        except PycrictlError as error:
            outcome = error
        else:
            write_all(env, stdout=answer.stdout, stderr=answer.stderr)
            outcome = ExitReported(answer.exit_code)
        outcomes.append((container_id, outcome))
    return _exit_status(env, outcomes, several=len(ids) > 1)


def _exit_status(
    env: Environment,
    outcomes: Iterable[tuple[str, ExitReported | PycrictlError | None]],
    *,
    several: bool,
) -> int:
    codes = [_told(env, container_id, outcome, several) for container_id, outcome in outcomes]
    return next((code for code in codes if code), 0)


def _told(
    env: Environment,
    container_id: str,
    outcome: ExitReported | PycrictlError | None,
    several: bool,
) -> int:
    what = f"running a command in container {quote(container_id)}"
    if isinstance(outcome, ExitReported) and outcome.exit_code is None:
        outcome = not_started(what, outcome)
    if isinstance(outcome, PycrictlError):
        # The runtime's errors say it; those of a stream know no container.
        is_told = not several or outcome.message.startswith(what)
        env.error(outcome.message if is_told else f"{what}: {outcome.message}", hint=outcome.hint)
        return outcome.exit_code
    code = outcome.exit_code if outcome is not None else 0
    if code and several:  # of one alone, the exit status tells
        env.error(f"the command in container {quote(container_id)} ended with status {code}")
    return code or 0
