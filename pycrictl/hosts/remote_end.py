"""The host's end of a session: starts the command, and ends it when the client is gone.

This process leads the session; the command runs in the foreground, in a process group of its own,
so that Ctrl-Z stops the command as under a shell. The client is gone if sshd has closed the
streams, or if TCP has received nothing from it for 4 s: the client's ssh sends a message every
second. The command then gets SIGHUP and, 0.5 s later, SIGKILL.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import sys
from contextlib import suppress

from pycrictl.hosts.session import CREDENTIALS, HOST_VARIABLE, MARK, SENT_VARIABLES, STOPPED, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

_IGNORED = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGTTOU, signal.SIGPIPE)
"""Signals that may end the command, but not this process, which then cleans up."""


def serve(run: Callable[[], NoReturn], words: Sequence[str]) -> NoReturn:
    """Run one command for the client that is connected to the standard streams.

    Args:
        run: runs the command line in ``sys.argv``, in a child process.
        words: the start message in hex, and SSH_CONNECTION: address and port of client and host.
    """
    start, connection = unpack(bytes.fromhex(words[0])), words[1]
    has_terminal = os.isatty(0) and os.isatty(1)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    os.write(1, MARK)
    if not has_terminal:
        os.write(2, MARK)
    if "files" in start:
        _write_files(start)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    pid = os.fork()
    if not pid:
        os.setpgid(0, 0)
        if has_terminal:
            with suppress(OSError):  # sudo has made a session of its own
                os.tcsetpgrp(0, os.getpid())
        _become(start, run)
    code = os.waitstatus_to_exitcode(_watched(pid, connection))
    for folder in (*start.get("files", ()), *start.get("scratch", ())):
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
    os._exit(code if code >= 0 else 128 - code)


def _watched(pid: int, connection: str, silence_s: float = 4.0, grace_s: float = 0.5) -> int:
    """Wait for the command, and return its wait status; end it if the client is gone."""
    poll = select.poll()
    poll.register(1, 0)  # reports only that the other end is closed
    is_gone = False
    while True:
        signal.sigtimedwait([signal.SIGCHLD], grace_s if is_gone else 1.0)
        done, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if done and not os.WIFSTOPPED(status):
            _signal(pid, signal.SIGHUP)  # to processes left behind, as when a terminal is closed
            return status
        if is_gone:
            _signal(pid, signal.SIGKILL)
        elif poll.poll(0) or _silence_s(connection) > silence_s:
            is_gone = True
            _signal(pid, signal.SIGCONT)
            _signal(pid, signal.SIGHUP)
        elif done:
            _let_suspend(pid)


def _let_suspend(pid: int) -> None:
    """Tell the client that the command has stopped, and continue it when the client says so."""
    import termios
    import tty

    with suppress(OSError, termios.error):  # the client is gone
        mode = termios.tcgetattr(0)
        os.tcsetpgrp(0, os.getpgrp())
        tty.setraw(0)
        os.write(1, STOPPED)
        os.read(0, 1)
        termios.tcsetattr(0, termios.TCSADRAIN, mode)
        os.tcsetpgrp(0, pid)
    _signal(pid, signal.SIGCONT)


def _silence_s(connection: str) -> float:
    """Return for how long TCP has received nothing from the client; 0 if unknown."""
    import socket

    from pycrictl.base.tcp_sockets import ESTABLISHED, tcp_sockets

    with suppress(OSError, ValueError, struct.error):
        _, client_port, address, port = connection.split()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        ports = int(port), int(client_port)
        # Of several clients with the same port, the one that sent last counts.
        return min(
            min(tcp.data_idle_s, tcp.ack_idle_s)
            for tcp in tcp_sockets(family, ESTABLISHED)
            if tuple(port for _, port in tcp.ends) == ports
        )
    return 0.0


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _become(start: dict[str, list[str]], run: Callable[[], NoReturn]) -> NoReturn:
    """Turn this process into the command."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN if number == signal.SIGPIPE else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    for name in (*SENT_VARIABLES, *CREDENTIALS, HOST_VARIABLE):
        os.environ.pop(name, None)
    os.environ |= dict(pair.split("=", 1) for pair in start.get("environ", ()))
    os.environ["PYCRICTL_ON_HOST"] = start["host"][0]
    sys.argv = start["argv"]
    terminals, words = start.get("terminals", ()), start.get("records", ())
    if terminals or words:
        from pycrictl.show.records import Records, ToldStream

        sys.stderr = ToldStream(2, is_terminal="2" in terminals)
        sys.stdout = ToldStream(1, is_terminal="1" in terminals)
        if words and "plain" not in start:
            sys.stdout = Records(*words, is_terminal="1" in terminals)
    run()


def _write_files(start: dict[str, list[str]]) -> None:
    """Write the client's files beside ``sent``, which holds them, and name them in the command."""
    import json
    from pathlib import Path

    (scratch,) = start["files"]
    sent = json.loads(Path(scratch, "sent").read_bytes())
    start.setdefault("environ", []).extend(sent["environ"])
    for place, text in sent["files"]:
        path = Path(scratch, f"{place}", Path(start["argv"][1 + place]).name)
        path.parent.mkdir()
        path.write_text(text, "utf-8")
        start["argv"][1 + place] = str(path)
