"""The client's end of a session: a command on a host, with its streams and its terminal."""

from __future__ import annotations

import json
import os
import select
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pycrictl import __version__
from pycrictl.hosts.connection import HostError, Ssh
from pycrictl.hosts.frames import BEAT_S, LOST_S, WINDOW_BYTES, Frames, Kind, frame
from pycrictl.units import escape

if TYPE_CHECKING:
    from pycrictl.environ import Environment
    from pycrictl.hosts.names import Host

HOST_VARIABLE: Final = "PYCRICTL_HOST"

SENT_VARIABLES: Final = (
    *("TERM", "COLORTERM", "NO_COLOR", "COLUMNS", "LINES", "LANG", "LC_ALL", "LC_CTYPE"),
    *("CRICTL_AUTH", "CRICTL_CREDS", "CRICTL_PULL_TIMEOUT"),
)
"""What travels of the environment: how to show results, and the credentials of a pull."""

PIECE_BYTES: Final = 32 * 1024


def start_message(
    env: Environment,
    argv: Sequence[str],
    files: Sequence[tuple[int, bytes]],
    *,
    terminals: Sequence[bool],
    merges: Mapping[str, bool] | None = None,
) -> dict[str, Any]:
    """Return what a host is told to run.

    Args:
        files: contents of files of this machine, by the places of their names in ``argv``.
        terminals: which of the three standard streams is one.
        merges: None to write as on a terminal; else for ``show.records``: which of the client's
            ``stdout`` and ``stderr`` is a terminal, and ``is_live``.
    """
    environ = {name: env.environ[name] for name in SENT_VARIABLES if name in env.environ}
    if merges is not None:
        environ["COLUMNS"] = str(env.columns or 80)
    return {
        "program": env.program,
        "argv": list(argv),
        "files": [(place, content.decode("latin-1")) for place, content in files],
        "environ": environ,
        "variables": [*SENT_VARIABLES, HOST_VARIABLE],
        "size": env.terminal_size(),
        "terminals": list(terminals),
        "merges": merges,
    }


class Session:
    """A command that runs on a host until it has ended or the session is closed."""

    def __init__(
        self, ssh: Ssh, host: Host, start: Mapping[str, Any], ask: Callable[[], str | None]
    ) -> None:
        self.host = host
        self._lock = threading.RLock()  # the handler of a signal may interrupt its own thread
        self._credit, self._changed = WINDOW_BYTES, threading.Condition()
        self._is_over = threading.Event()
        for is_last in (False, True):
            way = ssh.reach(host)
            self._process = ssh.session(host, way, ask() if way.needs_password else None)
            self.send(Kind.START, json.dumps({**start, "host": host.label}).encode())
            words, self._rest = self._process.mark(ssh.timeout_s)
            if words[:1] == [__version__]:
                break
            self._process.close()
            ssh.forget(host)
            if is_last or words != ["gone"]:
                other = escape(" ".join(words))
                raise HostError(f"the program there is pycrictl {other}, this one is {__version__}")
        threading.Thread(target=self._beat, daemon=True).start()

    def send(self, kind: Kind, content: bytes = b"") -> None:
        with self._lock:
            self._process.write(frame(kind, content))

    def send_input(self, descriptor: int) -> None:
        """Send what can be read from a descriptor, and its end, from a thread of its own."""
        threading.Thread(target=self._feed, args=(descriptor,), daemon=True).start()

    def frames(self) -> Iterator[tuple[Kind, bytes]]:
        """Yield what the command writes, and at last its exit status.

        Raises:
            HostError: the connection ended before the command.
        """
        frames, data = Frames(), self._rest
        while True:
            for kind, content in frames.feed(data):
                if kind is Kind.TAKEN:
                    with self._changed:
                        self._credit += int(content)
                        self._changed.notify()
                elif kind is not Kind.BEAT:
                    yield kind, content
                if kind is Kind.EXIT:
                    return
            if not select.select([self._process.stdout], [], [], LOST_S)[0]:
                raise HostError("the connection is lost: nothing was heard for 15 s")
            if not (data := os.read(self._process.stdout, 2 * PIECE_BYTES)):
                reason = self._process.last_words()
                raise HostError(f"the connection has ended{': ' * bool(reason)}{reason}")

    def close(self) -> None:
        """End the command if it still runs."""
        self._is_over.set()
        with self._changed:
            self._changed.notify_all()
        self._process.kill()  # so that no thread waits for it to read
        with self._lock:  # nor writes to a descriptor that is another's by then
            self._process.close()

    def _beat(self) -> None:
        while not self._is_over.wait(BEAT_S):
            self.send(Kind.BEAT)

    def put_input(self, data: bytes) -> None:
        """Send standard input when the command has read enough of what was sent before."""
        with self._changed:
            self._changed.wait_for(lambda: self._credit > 0 or self._is_over.is_set())
            self._credit -= len(data)
        self.send(Kind.INPUT, data)

    def _feed(self, descriptor: int) -> None:
        with suppress(OSError):
            while not self._is_over.is_set() and (data := os.read(descriptor, PIECE_BYTES)):
                self.put_input(data)
        self.send(Kind.INPUT_END)


def status_of(content: bytes) -> int:
    """Return the exit status in a frame, for the end by a signal as shells have it."""
    number = int(content)
    return number if number >= 0 else 128 - number
