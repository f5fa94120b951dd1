"""A command on one other host, shown as if it ran here: bytes, terminal, signals, exit status."""

from __future__ import annotations

import json
import os
import select
import signal
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from pycrictl.hosts.frames import Kind
from pycrictl.hosts.session import Session, status_of

if TYPE_CHECKING:
    from pycrictl.environ import Environment


def run_alone(session: Session, env: Environment, *, input_from: int | None, output_to: int) -> int:
    """Show a command as if it ran here; return its exit status.

    Args:
        input_from: the descriptor for its standard input; None to leave that alone.
        output_to: the descriptor for its standard output.
    """
    with ExitStack() as stack:
        stack.callback(session.close)
        terminal = None
        if env.stdin_is_terminal and input_from == 0:
            from pycrictl.streaming.terminal import Terminal  # noqa: PLC0415 - while ssh connects

            terminal = stack.enter_context(
                Terminal(0, screen=output_to if os.isatty(output_to) else None)
            )
            terminal.make_raw()
        if env.stdout_is_terminal or env.stderr_is_terminal:

            def resize(*_: object) -> None:
                session.send(Kind.SIZE, json.dumps(env.terminal_size()).encode())

            before = signal.signal(signal.SIGWINCH, resize)
            stack.callback(signal.signal, signal.SIGWINCH, before)
        before = signal.signal(signal.SIGTSTP, lambda *_: _suspend(session))
        stack.callback(signal.signal, signal.SIGTSTP, before)
        if input_from is not None:
            session.send_input(input_from)
        else:
            session.send(Kind.INPUT_END)
        for kind, content in session.frames():
            if kind is Kind.OUTPUT:
                if terminal is not None:
                    terminal.showed(content)
                _write(output_to, content)
            elif kind is Kind.ERROR:
                with suppress(OSError):
                    _write(2, content)
            elif kind is Kind.STOPPED:
                if terminal is not None:
                    terminal.restore()
                _suspend(session)
                if terminal is not None:
                    terminal.make_raw()
                session.send(Kind.SIZE, json.dumps(env.terminal_size()).encode())
            elif kind is Kind.EXIT:
                return status_of(content)
    raise AssertionError("a session without an end")


def _suspend(session: Session) -> None:
    """Stop the command, and then this program, until both are continued."""
    session.send(Kind.SIGNAL, b"%d" % signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGSTOP)
    session.send(Kind.SIGNAL, b"%d" % signal.SIGCONT)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            select.select([], [descriptor], [])
