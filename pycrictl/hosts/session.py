"""The client's end of a command on a host: the system's ssh, on a terminal or with pipes.

It imports nothing slow: ``run_kept`` runs before the other modules are loaded.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import closing, suppress

from pycrictl.base.output import write_pieces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    Fields = dict[str, list[str]]  # names with any number of texts

COMMAND_VARIABLE = "PYCRICTL_SSH_COMMAND"
HOST_VARIABLE = "PYCRICTL_HOST"
SENT_VARIABLES = frozenset(
    "TERM COLORTERM NO_COLOR COLUMNS LINES LANG LC_ALL LC_CTYPE CRICTL_PULL_TIMEOUT".split()
)
"""Variables that are sent to the host with every command: how to show results, and a timeout."""

CREDENTIALS = ("CRICTL_AUTH", "CRICTL_CREDS")
"""Variables that are sent like files, and only with commands that use them."""

MARK = b"\x1b_pycrictl-host\x1b\\"
"""The host's end writes it to its outputs first; a shell's start files may print before that.

Terminals ignore what is between these control characters (APC, ST).
"""
STOPPED = b"\x1b_pycrictl-stopped\x1b\\"
"""Sent when Ctrl-Z has stopped the command, which continues when the host's end gets a byte."""

_PIECE_BYTES = 64 * 1024

_SIGNALS_S = 0.5
"""How long a wait for data lasts at most: a signal that arrives right before it does not end it."""

_PLAIN = frozenset(
    "ps pods images stats statsp logs why doctor top version info"
    " inspect inspecti inspectp imagefsinfo".split()
)
"""Commands that neither read standard input nor name files of this machine."""


class HostError(Exception):
    """A host cannot be used, or was lost (``is_begun``); the message does not name the host."""

    def __init__(self, message: str, *, hint: str | None = None, is_begun: bool = False) -> None:
        self.message, self.hint, self.is_begun = message, hint, is_begun


def control_socket(environ: Mapping[str, str], host: str) -> str:
    """Return the path of a host's control socket: 128 bits of a digest, to stay below 108 bytes."""
    import hashlib  # takes time to load, and the host's end needs none

    runtime = environ.get("XDG_RUNTIME_DIR", "")
    folder = f"{runtime}/pycrictl" if runtime else f"/tmp/pycrictl-ssh-{os.geteuid()}"
    key = f"{environ.get(COMMAND_VARIABLE, '')}\0{host}".encode(errors="surrogateescape")
    return f"{folder}/{hashlib.sha256(key).hexdigest()[:32]}"


def is_private(folder: str) -> bool:
    """Return whether a folder is this user's, and closed to all others."""
    status = os.lstat(folder)
    return status.st_uid == os.geteuid() and status.st_mode & 0o170077 == 0o040000


def pack(fields: Fields) -> bytes:
    """Return fields as bytes; JSON would take time to load."""
    lines = [f"{name}={text}" for name, texts in fields.items() for text in texts]
    return "\0".join(lines).encode(errors="surrogateescape")


def unpack(content: bytes) -> Fields:
    fields: Fields = {}
    for line in content.decode(errors="surrogateescape").split("\0"):
        name, _, text = line.partition("=")
        fields.setdefault(name, []).append(text)
    return fields


def known_way(socket: str) -> Fields | None:
    """Return how a host runs commands, by the file beside its control socket; None if unconnected.

    ``ssh`` is the command ssh with its options, ``host`` its arguments for the host, ``program``
    pycrictl there, run by sudo if ``sudo`` is set. ``scratch`` are folders to remove afterwards.
    """
    try:
        with open(f"{socket}.way", "rb") as file:
            # An older file is from an earlier connection.
            is_kept = os.fstat(file.fileno()).st_mtime_ns >= os.lstat(socket).st_mtime_ns
            return unpack(file.read()) if is_kept and is_private(os.path.dirname(socket)) else None
    except OSError:
        return None


def start_message(host: str, argv: Sequence[str], environ: Mapping[str, str]) -> Fields:
    """Return the start message, which tells the host's end what to run.

    Callers may add ``files``, the folder for sent files on the host; ``terminals``, which of the
    client's outputs (1 and 2) are terminals; ``records``, the secret word in front of the records
    that the command then writes, unless ``plain`` is set.
    """
    sent = [f"{name}={environ[name]}" for name in SENT_VARIABLES if name in environ]
    return {"argv": [*argv], "host": [host], "environ": sent}


def run_kept(argv: Sequence[str]) -> int | None:
    """Run a plain command on a host over a kept connection; return None if that is not possible.

    The command line is ``-H HOST COMMAND …``, or ``COMMAND …`` with PYCRICTL_HOST set.
    """
    host, words = os.environ.get(HOST_VARIABLE, ""), [*argv[1:]]
    if words[:1] in (["-H"], ["--host"]) and words[1:]:
        _, host, *words = words
    if not words or words[0] not in _PLAIN or "PYCRICTL_ON_HOST" in os.environ:
        return None
    if (way := known_way(control_socket(os.environ, host))) is None:
        return None
    for number in (signal.SIGTERM, signal.SIGHUP):  # else the terminal would stay raw
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    start = start_message(host, [argv[0].rpartition("/")[2], *words], os.environ)
    try:
        return run(way, start, is_terminal=all(map(os.isatty, (0, 1, 2))))
    except OSError as exc:
        text = f"cannot write to standard output: {exc.strerror}".lower()
    except HostError as exc:
        if not exc.is_begun:
            return None
        text = f"{host}: {exc.message}"
    os.write(2, f"pycrictl: {text}\n".encode())
    return 1


def run(
    way: Fields, start: Fields, *, is_terminal: bool, stdin: int | None = None, stdout: int = 1
) -> int:
    """Run a command on a host as if it ran here; return its exit status.

    Args:
        stdin: the descriptor of its standard input, unless that is the terminal; None for none.
        stdout: the descriptor that gets its standard output.

    Raises:
        HostError: the command has not started, or the connection was lost.
    """
    if terminals := [fd for fd in (stdout, 2) if not is_terminal and os.isatty(fd)]:
        size = os.get_terminal_size(terminals[0])
        start["environ"] += [f"COLUMNS={size.columns}", f"LINES={size.lines}"]
        start["terminals"] = [str(number) for number in terminals]
    with closing(started(way, start, stdin, is_terminal=is_terminal)) as process:
        if is_terminal:
            _share_terminal(process)
        else:
            for is_error, data in process.pieces():
                write_pieces(2 if is_error else stdout, [data])
    return process.result()


def started(
    way: Fields, start: Fields, stdin: int | None = None, *, is_terminal: bool = False
) -> Process:
    """Start a command; the start message is an argument, in hex for shells of any kind."""
    sudo = "" if "sudo" not in way else "sudo -- " if is_terminal else "sudo -n -- "
    told = pack({**start, "scratch": way.get("scratch", [])}).hex()
    # sudo passes on no variables.
    command = f'{sudo}{way["program"][0]} __host {told} "$SSH_CONNECTION"'
    flags = ["-tt", "-o", "LogLevel=ERROR"] if is_terminal else ["-T", "-o", "BatchMode=yes"]
    words = [*way["ssh"], *flags, *way["host"], command]
    process = Process(words, stdin, way, is_terminal=is_terminal)
    if is_terminal and sudo:
        process.before.clear()  # it may ask for a password
    return process


class Process:
    """A running ssh, and the outputs of its command.

    With a ``way``, ssh gets a terminal of its own, so it gets SIGHUP even if pycrictl is killed.

    Args:
        stdin: the descriptor of its standard input; None for none.
        way: how the host is reached; if empty, ssh connects, and may ask on this terminal.
        is_terminal: whether ssh's own terminal is its standard input and outputs; ``stdout`` is
            then the other end of that terminal.

    Attributes:
        before: the last bytes of each output before the mark, by descriptor.
    """

    def __init__(
        self, words: list[str], stdin: int | None, way: Fields, *, is_terminal: bool = False
    ) -> None:
        self._way, self._status = way, -1
        self._control, terminal = os.openpty() if way else (-1, -1)
        self.stdout, self._stderr, given = self._control, -1, [terminal] * 3
        if is_terminal:
            self.resize()
        else:
            given = [os.open(os.devnull, os.O_RDONLY) if stdin is None else os.dup(stdin)]
            self.stdout, out = os.pipe()
            self._stderr, err = os.pipe()
            given += [out, err]
        self.before = {fd: b"" for fd in (self.stdout, self._stderr) if fd >= 0}
        actions: list[Any] = [(os.POSIX_SPAWN_DUP2, fd, place) for place, fd in enumerate(given)]
        if way:  # a session gets the first terminal that it opens
            actions.insert(0, (os.POSIX_SPAWN_OPEN, 1, os.ttyname(terminal), os.O_RDWR, 0))
        self._pid = os.posix_spawnp(
            words[0],
            words,
            os.environ,
            file_actions=actions,
            setsid=bool(way),
            setsigdef=[signal.SIGPIPE],
        )
        for descriptor in {*given, terminal} - {-1}:
            os.close(descriptor)

    def resize(self) -> None:
        """Give ssh's terminal the size of this one."""
        import termios

        termios.tcsetwinsize(self._control, termios.tcgetwinsize(1))

    def pieces(
        self, timeout_s: float | None = None, keyboard: Sequence[int] = ()
    ) -> Iterator[tuple[bool, bytes]]:
        """Yield the data of both outputs after the mark, with True if it is from standard error.

        Args:
            keyboard: descriptors whose data is written to ssh's terminal, until one ends.

        Raises:
            TimeoutError: nothing has arrived for ``timeout_s``.
        """
        left = [fd for fd in (self.stdout, self._stderr) if fd >= 0]
        while left:
            wait_s = _SIGNALS_S if timeout_s is None else timeout_s
            ready = select.select([*left, *keyboard], [], [], wait_s)[0]
            if not ready and timeout_s is not None:
                if self.stdout in left:
                    raise TimeoutError
                return  # the ssh that keeps the connection may hold standard error open
            for descriptor in ready:
                data = b""
                with suppress(OSError):  # the other end of a terminal is closed
                    data = os.read(descriptor, _PIECE_BYTES)
                if descriptor in keyboard:
                    if not data:
                        return
                    write_pieces(self._control, [data])
                elif not data:
                    left.remove(descriptor)
                    if descriptor == self.stdout and not self._way:
                        timeout_s = 0
                elif data := self._after_mark(descriptor, data):
                    yield descriptor == self._stderr, data

    def _after_mark(self, descriptor: int, data: bytes) -> bytes:
        if descriptor not in self.before:
            return data
        before, mark, data = (self.before[descriptor] + data).partition(MARK)
        if mark:
            del self.before[descriptor]
        else:
            self.before[descriptor] = before[-_PIECE_BYTES:]
        return data

    def close(self) -> int:
        """End ssh and its command on the host, unless they have ended; return the exit status."""
        if self._status < 0:
            for descriptor in {self.stdout, self._stderr, self._control} - {-1}:
                os.close(descriptor)
            # Without effect if it has ended: until it is waited for, no other process has its ID.
            os.kill(self._pid, signal.SIGTERM)
            code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            self._status = code if code >= 0 else 128 - code
        return self._status

    def result(self) -> int:
        """Return the exit status; HostError if the command has not started, or was lost."""
        status = self.close()
        if self.stdout in self.before:
            with suppress(OSError):
                os.unlink(f"{self._way['socket'][0]}.way")
            raise self.failure()
        # 255 means a lost connection, whose socket vanishes soon, or is the command's own status.
        for _ in range(25 if status == 255 else 0):
            if not os.path.exists(self._way["socket"][0]):
                raise HostError("the connection has ended", is_begun=True)
            time.sleep(0.02)
        return status

    def failure(self) -> HostError:
        """Return why the command has not begun, from what was printed instead."""
        from pycrictl.base.units import escape, shorten

        texts = [text.decode(errors="replace").strip() for text in self.before.values()]
        lines = [shorten(escape(text.rpartition("\n")[2].strip()), 300) for text in texts]
        answer = f'; it answers "{lines[0]}"' if lines[0] else ""
        # The last output is standard error, or the terminal.
        return HostError(lines[-1] or f"it does not run the requested command{answer}")


def _share_terminal(process: Process) -> None:
    """Copy everything between this terminal and that of ssh.

    ssh itself cannot be suspended: the ssh that keeps the connection would still read the keyboard.
    """
    import termios
    import tty

    saved, held = termios.tcgetattr(0), b""
    signal.signal(signal.SIGWINCH, lambda *_: process.resize())
    try:
        tty.setraw(0)
        for _, data in process.pieces(keyboard=[0]):
            *texts, data = (held + data).split(STOPPED)
            for text in texts:
                write_pieces(1, [text])
                termios.tcsetattr(0, termios.TCSADRAIN, saved)
                os.kill(0, signal.SIGSTOP)
                tty.setraw(0)
                process.resize()
                os.write(process.stdout, b"\n")
            at = data.rfind(b"\x1b")
            held = data[at:] if at >= 0 and STOPPED.startswith(data[at:]) else b""
            write_pieces(1, [data[: len(data) - len(held)]])
    finally:
        signal.signal(signal.SIGWINCH, signal.SIG_DFL)
        termios.tcsetattr(0, termios.TCSADRAIN, saved)
