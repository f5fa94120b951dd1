"""Remote commands connected to the program's own standard streams."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Final

from pycrictl.base.environ import Environment
from pycrictl.base.errors import PycrictlError, RuntimeFault
from pycrictl.streams.loop import run_in_loop
from pycrictl.streams.pump import Ends, Input, Output
from pycrictl.streams.remote_command import Choice, run_command
from pycrictl.streams.target import TlsFiles
from pycrictl.streams.terminal import Terminal
from pycrictl.streams.wire.command import ExitReported, Streams

Outcome = ExitReported | PycrictlError | None
"""The outcome of a command; None if the user left it with the detach keys."""


def stream_all(
    env: Environment,
    ask_urls: Sequence[Callable[[], str]],
    streams: Streams,
    *,
    choice: Choice = "auto",
    is_attach: bool = False,
    timeout_s: float,
    tls: TlsFiles | None = None,
    spares: Callable[[int], bool] | None = None,
) -> list[Outcome]:
    """Run commands concurrently until all have ended, even if some of them fail.

    With a terminal or standard input there must be only one. ``spares`` returns whether a signal is
    ignored once a URL is known.
    """
    is_up = False

    def ask(ask_url: Callable[[], str]) -> str:
        nonlocal is_up
        url = ask_url()
        is_up = True
        return url

    async def one(ask_url: Callable[[], str], ends: Ends) -> Outcome:
        try:
            return await run_command(
                partial(ask, ask_url),
                streams,
                ends,
                choice=choice,
                is_attach=is_attach,
                timeout_s=timeout_s,
                tls=tls,
            )
        except PycrictlError as error:
            return error

    async def every(terminal: Terminal | None) -> list[Outcome]:
        stdout, stderr = Output(env.stdout), Output(env.stderr)
        stdin = Input(env.stdin) if streams.stdin else None
        ends = Ends(stdout, stderr, stdin, terminal, env.warn)
        outcomes = await asyncio.gather(*(one(ask_url, ends) for ask_url in ask_urls))
        await stdout.finish()
        await stderr.finish()
        return outcomes

    screen = env.stdout.fileno() if streams.tty and env.stdout.isatty() else None
    with Terminal(env.stdin.fileno(), screen=screen) if streams.tty else nullcontext() as terminal:
        return run_in_loop(
            every(terminal), spares=lambda number: is_up and spares is not None and spares(number)
        )


class CommandMissing(RuntimeFault):
    exit_code = 127


class CommandRefused(RuntimeFault):
    exit_code = 126


_NO_SHELL: Final = r'exec: "(?:[^"]*/)?(?:ba|da|a|z|k)?sh": '


def not_started(what: str, outcome: ExitReported) -> PycrictlError:
    """Return the error for a command that did not start, with the exit status that shells use."""
    details = outcome.message
    hint = None
    if re.search(_NO_SHELL, details):
        hint = (
            "it has no shell: 'pycrictl cp' copies files without one, 'pycrictl debug' brings one"
            " along"
        )
    message = f"{what}: {details}"
    if "executable file not found" in details or "no such file or directory" in details:
        return CommandMissing(message, details=details, hint=hint)
    if "permission denied" in details:
        return CommandRefused(message, details=details)
    return RuntimeFault(message, details=details)
