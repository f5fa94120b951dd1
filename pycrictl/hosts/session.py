"""The client's end of a command on a host: the system's ssh, on a terminal or with pipes.

Imports nothing that costs time: ``run_kept`` comes before the program's own modules are loaded.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    Fields = Mapping[str, Sequence[str]]
    """Names with any number of texts."""

COMMAND_VARIABLE = "PYCRICTL_SSH_COMMAND"
HOST_VARIABLE = "PYCRICTL_HOST"
SENT_VARIABLES = (
    *("TERM", "COLORTERM", "NO_COLOR", "COLUMNS", "LINES", "LANG", "LC_ALL", "LC_CTYPE"),
    "CRICTL_PULL_TIMEOUT",
)
"""What travels of the environment: how to show results."""

CREDENTIALS = ("CRICTL_AUTH", "CRICTL_CREDS")
"""Variables that travel as files do, for commands that use them."""

ENTRY = "__host"
"""The word that makes the program the host's end of a session."""

MARK = b"\npycrictl-host\n"
"""Written by the host's end to standard output and error: a shell's start files may print before.

On a terminal, it and ``STOPPED`` are between ``APC``, which terminals ignore, and ``ST``.
"""
BEGUN = b"\x1b_pycrictl-host\x1b\\"
STOPPED = b"\x1b_pycrictl-stopped\x1b\\"
"""The command was stopped by Ctrl-Z; the host's end continues it when it gets a byte."""

LOST_STATUS = 255
"""How ssh ends if its connection does, and perhaps a command as well."""

_LINGER_S = 0.5
_PIECE_BYTES = 64 * 1024
_SEEN_BYTES = 64 * 1024
"""How much is kept of what is printed before the mark."""

_WORD = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_@:")
_PLAIN = (
    *("ps", "pods", "images", "stats", "statsp", "logs", "why", "doctor", "top", "version", "info"),
    *("inspect", "inspecti", "inspectp", "imagefsinfo"),
)
"""Commands that neither read standard input nor name files of this machine."""


def folder_of(environ: Mapping[str, str]) -> str:
    """Return the private folder for control connections."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    return f"{runtime}/pycrictl" if runtime else f"/tmp/pycrictl-ssh-{os.geteuid()}"


def socket_of(environ: Mapping[str, str], label: str, *, sudo: bool) -> str:
    """Return the path of a host's control socket; with ``.way``, of what is known of the host."""
    key = "\0".join((environ.get(COMMAND_VARIABLE, ""), "sudo" if sudo else "", label)).encode()
    return f"{folder_of(environ)}/{zlib.crc32(key):08x}-{len(key)}"


def pack(fields: Fields) -> bytes:
    """Return fields as bytes; JSON would take time to load."""
    lines = [f"{name}={text}" for name, texts in fields.items() for text in texts]
    return "\0".join(lines).encode(errors="surrogateescape")


def unpack(content: bytes) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = {}
    for line in content.decode(errors="surrogateescape").split("\0"):
        name, _, text = line.partition("=")
        fields.setdefault(name, []).append(text)
    return fields


def known_way(socket: str) -> Fields | None:
    """Return how commands are run on a host, if its control connection is kept.

    ``ssh`` are the words of ssh with its options, ``name`` is its destination, ``command`` runs the
    program there, with places for ``sudo`` and ``start``; ``sudo`` is there if it runs by sudo, and
    ``asks`` if that needs a password.
    """
    try:
        status = os.lstat(os.path.dirname(socket))
        if status.st_uid != os.geteuid() or status.st_mode & 0o170077 != 0o040000:
            return None
        with open(f"{socket}.way", "rb") as file:
            way = unpack(file.read())
        return way if way.get("inode") == [str(os.lstat(socket).st_ino)] else None
    except OSError:
        return None


def is_lost(socket: str) -> bool:
    """Return whether a host's kept connection has ended; it does a moment after its commands."""
    until_s = time.monotonic() + _LINGER_S
    while known_way(socket) is not None:
        if time.monotonic() >= until_s:
            return False
        time.sleep(0.02)
    return True


def start_message(
    program: str, label: str, argv: Sequence[str], environ: Mapping[str, str]
) -> dict[str, list[str]]:
    """Return what the host's end is told to run.

    More fields: ``files``, the path there of what else travels; ``terminals``, the descriptors of
    the client's standard output and error that are; ``records``, a secret word in front of records
    of output, unless ``plain`` is there.
    """
    sent = [f"{name}={environ[name]}" for name in SENT_VARIABLES if name in environ]
    return {"argv": [program, *argv], "host": [label], "environ": sent}


def words_of(way: Fields, start: Fields, *, is_terminal: bool) -> list[str]:
    """Return ssh's command line; the start is an argument, in hex for shells of any kind."""
    sudo = "" if "sudo" not in way else "sudo -- " if is_terminal else "sudo -n -- "
    command = way["command"][0] % {"sudo": sudo, "start": pack(start).hex()}
    flags = ["-T", "-o", "BatchMode=yes"]
    if is_terminal:
        flags = ["-tt", "-o", "LogLevel=ERROR"]
    return [*way["ssh"], *flags, "--", *way["name"], command]


def run_kept(argv: Sequence[str]) -> int | None:
    """Run a plain command on a host with a kept connection; None if there is more to do.

    It is ``-H HOST COMMAND …``, or ``COMMAND …`` with the variable.
    """
    label, words = os.environ.get(HOST_VARIABLE, ""), [*argv[1:]]
    if words[:1] in (["-H"], ["--host"]) and words[1:]:
        _, label, *words = words
    is_terminal = all(map(os.isatty, (0, 1, 2)))
    if not label or not _WORD.issuperset(label) or not words or words[0] not in _PLAIN:
        return None
    socket = socket_of(os.environ, label, sudo=False)
    if "PYCRICTL_ON_HOST" in os.environ or (way := known_way(socket)) is None:
        return None
    for number in (signal.SIGTERM, signal.SIGHUP):  # else the terminal would stay raw
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    start = start_message(argv[0].rpartition("/")[2], label, words, os.environ)
    try:
        end = run(way, start, is_terminal=is_terminal)
    except OSError as exc:
        os.write(2, f"pycrictl: cannot write to standard output: {exc.strerror}\n".lower().encode())
        return 1
    if not end.is_begun:
        os.unlink(f"{socket}.way")
        return None
    if end.status == LOST_STATUS and is_lost(socket):
        os.write(2, f"pycrictl: {label}: the connection has ended\n".encode())
        return 1
    return end.status


class End:
    """How a command ended.

    If it has not begun, ``text`` has what was printed instead: errors, or else output.
    """

    def __init__(self, status: int, text: bytes, *, is_begun: bool, is_error: bool = True) -> None:
        self.status, self.text, self.is_begun, self.is_error = status, text, is_begun, is_error


def run(
    way: Fields,
    start: dict[str, list[str]],
    *,
    is_terminal: bool,
    stdin: int | None = None,
    stdout: int = 1,
) -> End:
    """Run a command on a host as if it ran here.

    Args:
        stdin: a descriptor that the command reads, if it does, unless it has the terminal.
        stdout: the descriptor that gets its standard output.
    """
    if is_terminal:
        return _run_on_terminal(words_of(way, start, is_terminal=True), is_shown="asks" in way)
    terminals = [number for number in (stdout, 2) if os.isatty(number)]
    if terminals:
        size = os.get_terminal_size(terminals[0])
        start["environ"] += [f"COLUMNS={size.columns}", f"LINES={size.lines}"]
        start["terminals"] = [str(number) for number in terminals]
    process = Process(words_of(way, start, is_terminal=False), stdin)
    try:
        for is_error, data in process.pieces():
            _write(2 if is_error else stdout, data)
    finally:
        process.close()
    return process.end


class Process:
    """A running ssh, and the outputs of its command.

    Args:
        stdin: its standard input: None for nothing, -1 for a pipe, whose end is ``stdin``.
        is_bound: whether it gets a terminal of its own to control it, which is hung up when this
            process ends, even if it is killed; else it may ask questions on this terminal, and
            leave a control connection behind.
    """

    def __init__(
        self, words: list[str], stdin: int | None = None, *, is_bound: bool = True
    ) -> None:
        self.stdin = -1
        if stdin is None:
            given = os.open(os.devnull, os.O_RDONLY)
        elif stdin < 0:
            given, self.stdin = os.pipe()
        else:
            given = os.dup(stdin)
        self.stdout, out = os.pipe()
        self.stderr, err = os.pipe()
        self._before = {self.stdout: b"\n", self.stderr: b"\n"}  # what has come before the mark
        self._is_bound, self._is_over, self._status = is_bound, False, -1
        self._terminal, terminal = os.openpty() if is_bound else (-1, -1)
        try:
            self._pid = _spawn(words, (given, out, err), terminal)
        finally:
            for descriptor in {given, out, err, terminal} - {-1}:
                os.close(descriptor)

    @property
    def end(self) -> End:
        """How it has ended, after ``close``."""
        errors = self._before.get(self.stderr, b"").strip()
        text = errors or self.answer.strip().partition(b"\n")[0]
        is_begun = self.stdout not in self._before
        return End(self._status, text, is_begun=is_begun, is_error=bool(errors))

    @property
    def answer(self) -> bytes:
        """The last of what standard output has before the mark, or without one."""
        return self._before.get(self.stdout, b"")

    def pieces(self, timeout_s: float | None = None) -> Iterator[tuple[bool, bytes]]:
        """Yield what both outputs have after the mark, and whether it is standard error.

        Raises:
            TimeoutError: nothing came for so long.
        """
        left = [self.stdout, self.stderr]
        while left:
            # What is left behind may hold on to standard error.
            lingers = self._is_over and not self._is_bound
            ready = select.select(left, [], [], _LINGER_S if lingers else timeout_s)[0]
            if lingers and not ready:
                return
            if not ready:
                raise TimeoutError
            for descriptor in ready:
                if not (data := os.read(descriptor, _PIECE_BYTES)):
                    self._is_over |= descriptor == self.stdout
                    left.remove(descriptor)
                elif data := self._after_mark(descriptor, data):
                    yield descriptor == self.stderr, data

    def _after_mark(self, descriptor: int, data: bytes) -> bytes:
        if descriptor not in self._before:
            return data
        before, mark, data = (self._before[descriptor] + data).partition(MARK)
        if mark:
            del self._before[descriptor]
        else:
            self._before[descriptor] = before[-_SEEN_BYTES:]
        return data

    def close(self) -> int:
        """End it if it still runs, and what it runs on the host; return its exit status."""
        if self._status < 0:
            for descriptor in {self.stdin, self.stdout, self.stderr, self._terminal} - {-1}:
                os.close(descriptor)
            if not self._is_over:
                os.kill(self._pid, signal.SIGTERM)
            self._status = _status(os.waitpid(self._pid, 0)[1])
        return self._status


def feed(pieces: Iterable[bytes | memoryview], processes: Iterable[Process]) -> None:
    """Write the same standard input to all processes, as fast as the slowest reads; then end it."""
    left = [*processes]
    for piece in pieces:
        for process in [*left]:
            try:
                _write(process.stdin, piece)
            except OSError:  # it reads no more, and its end tells why
                left.remove(process)
        if not left:
            break
    for process in left:
        os.close(process.stdin)
        process.stdin = -1


def _spawn(words: list[str], streams: Sequence[int], terminal: int) -> int:
    """Start ssh, in a session of its own if a terminal is to control it; return its process."""
    actions: list[Any] = [(os.POSIX_SPAWN_DUP2, here, there) for there, here in enumerate(streams)]
    if terminal >= 0:  # a session gets the first terminal that it opens
        actions.insert(0, (os.POSIX_SPAWN_OPEN, 1, os.ttyname(terminal), os.O_RDWR, 0))
    return os.posix_spawnp(
        words[0],
        words,
        os.environ,
        file_actions=actions,
        setsid=terminal >= 0,
        setsigdef=[signal.SIGPIPE],
    )


def _run_on_terminal(words: list[str], *, is_shown: bool) -> End:
    """Run ssh on a terminal of its own, between which and this one everything is copied.

    ssh itself cannot be suspended over a kept connection: that would go on to read the keyboard.

    Args:
        is_shown: whether what comes before the command, such as a question of sudo, is shown.
    """
    import termios
    import tty

    saved, size = termios.tcgetattr(0), termios.tcgetwinsize(1)
    there, terminal = os.openpty()
    termios.tcsetwinsize(terminal, size)
    pid = _spawn(words, [terminal] * 3, terminal)
    os.close(terminal)

    def resize(*_: object) -> None:
        termios.tcsetwinsize(there, termios.tcgetwinsize(1))

    def suspend() -> None:
        termios.tcsetattr(0, termios.TCSADRAIN, saved)
        os.kill(0, signal.SIGSTOP)
        tty.setraw(0)
        resize()
        os.write(there, b"\n")

    before = held = b""
    is_begun = is_shown
    signal.signal(signal.SIGWINCH, resize)
    try:
        tty.setraw(0)
        while True:
            ready = select.select([0, there], [], [])[0]
            if 0 in ready:
                if not (typed := os.read(0, _PIECE_BYTES)):
                    break
                _write(there, typed)
            if there not in ready:
                continue
            try:
                data = os.read(there, _PIECE_BYTES)
            except OSError:  # the terminal's other end is closed
                break
            if not is_begun:
                before = (before + data)[-_SEEN_BYTES:]
                _, mark, data = before.partition(BEGUN)
                is_begun = bool(mark)
            *texts, data = (held + data).split(STOPPED)
            for text in texts:
                _write(1, text)
                suspend()
            at = data.rfind(b"\x1b")
            held = data[at:] if at >= 0 and STOPPED.startswith(data[at:]) else b""
            _write(1, data[: len(data) - len(held)])
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, saved)
        os.close(there)
        _, status = os.waitpid(pid, 0)
    return End(_status(status), before, is_begun=is_begun)


def _status(status: int) -> int:
    number = os.waitstatus_to_exitcode(status)
    return number if number >= 0 else 128 - number


def _write(descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            select.select([], [descriptor], [])
