"""The host's end of a session: starts the command, and ends it when the client is gone.

It is the session's leader, and the command runs in a process group of its own in the foreground, so
that Ctrl-Z stops it as under a shell. The client beats every second; if it is silent for
``SILENCE_S``, or standard input ends, the command gets SIGHUP and, 0.5 s later, SIGKILL.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

from pycrictl import __version__
from pycrictl.environ import ON_HOST
from pycrictl.hosts.frames import BEAT_S, LOST_S, MARK, SILENCE_S, Frames, Kind, frame

_GRACE_S: Final = 0.5
_PAUSE_S: Final = 0.2
_PIECE_BYTES: Final = 64 * 1024
_LAST_PIECES: Final = 16
"""As many as a pipe holds at most."""

_NAME: Final = re.compile(r"\d[\w.+]*-\w+-[0-9a-f]{32}")


def serve(run: Callable[[], NoReturn], load: Callable[[], object], folder: str = "") -> NoReturn:
    """Run one command for the client at the standard streams.

    Args:
        run: runs the command line in ``sys.argv``, in a child process.
        load: loads what most commands need, while the client still reads its command line.
        folder: of the program, if it is in the cache: older ones beside it are removed.
    """
    with suppress(PermissionError):  # it leads one already
        os.setsid()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTTOU, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    os.write(1, f"\n{MARK} {__version__}\n".encode())
    load()
    frames = Frames()
    pending: list[tuple[Kind, bytes]] = []
    while not pending:
        if not select.select([0], [], [], LOST_S)[0] or not (data := os.read(0, _PIECE_BYTES)):
            os._exit(1)
        pending = list(frames.feed(data))
    start = json.loads(pending.pop(0)[1])
    scratch = ""
    if start["files"]:
        from tempfile import mkdtemp  # noqa: PLC0415 - takes time to load

        scratch = mkdtemp(prefix="pycrictl-")
    try:
        command = _Command(start, scratch, run)
        lock = _tidy(Path(folder)) if folder else None
        _Session(command, frames).run(pending)
        del lock
    finally:
        if scratch:
            _remove(scratch)
    os._exit(0)


class _Command:
    """The command in its process group, with the ends of its streams here.

    ``inputs`` is the descriptor for its standard input, or -1; ``outputs`` has the kind of frame
    for each descriptor that is read; ``terminal`` is the pseudo terminal, or -1.
    """

    def __init__(self, start: Mapping[str, Any], scratch: str, run: Callable[[], NoReturn]) -> None:
        argv = [str(word) for word in start["argv"]]
        for place, text in start["files"]:
            path = Path(scratch, f"{place}", Path(argv[place]).name)
            path.parent.mkdir()
            path.write_bytes(text.encode("latin-1"))
            argv[place] = str(path)
        terminals = start["terminals"]  # of the three standard streams
        self.terminal = slave = -1
        own = []
        self.outputs: dict[int, Kind] = {}
        if any(terminals):
            self.terminal, slave = os.openpty()
            with suppress(OSError):  # sudo has made a session of its own
                fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
            self.resize(start["size"])
            if not terminals[
                0
            ]:  # the client's terminal is not raw, and moves to the next line itself
                mode = termios.tcgetattr(slave)
                mode[1] &= ~termios.OPOST
                termios.tcsetattr(slave, termios.TCSANOW, mode)
            self.outputs[self.terminal] = Kind.OUTPUT if terminals[1] else Kind.ERROR
        for number, kind in enumerate((None, Kind.OUTPUT, Kind.ERROR, Kind.RECORD)):
            if number < 3 and terminals[number]:
                own.append(slave)
                if kind is None:
                    self.inputs = self.terminal
                continue
            end, other = os.pipe()
            own.append(other if kind else end)
            if kind is None:
                self.inputs = other
            else:
                self.outputs[end] = kind
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            try:
                _become(own, slave, argv, start, run)
            except Exception as exc:
                os.write(2, f"pycrictl: cannot start: {exc}\n".encode())
            finally:
                os._exit(1)
        for descriptor in {*own}:
            os.close(descriptor)

    def resize(self, size: tuple[int, int]) -> None:
        if self.terminal >= 0:
            content = struct.pack("HHHH", size[1], size[0], 0, 0)
            fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, content)

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def _become(
    streams: list[int],
    slave: int,
    argv: list[str],
    start: Mapping[str, Any],
    run: Callable[[], NoReturn],
) -> NoReturn:
    """Turn this new process into the command."""
    os.setpgid(0, 0)
    if slave >= 0:
        with suppress(OSError):  # not this session's terminal
            os.tcsetpgrp(slave, os.getpid())
    for number, descriptor in enumerate(streams[:3]):
        os.dup2(descriptor, number)
    records = streams[3]
    os.closerange(3, records)
    os.closerange(records + 1, 256)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTTOU, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    for name in start["variables"]:
        os.environ.pop(name, None)
    os.environ.update(start["environ"])
    os.environ[ON_HOST] = start["host"]
    sys.argv = [start["program"], *argv]
    sys.stdin = open(0, errors="surrogateescape", closefd=False)
    sys.stderr = open(2, "w", errors="backslashreplace", closefd=False, buffering=1)
    sys.stdout = open(1, "w", closefd=False)
    if (merges := start["merges"]) is not None:
        from pycrictl.show.records import Records, ToldStream  # noqa: PLC0415 - for several hosts

        sys.stdout = Records(1, records, is_terminal=merges["stdout"], is_live=merges["is_live"])
        sys.stderr = ToldStream(2, is_terminal=merges["stderr"])
    run()


class _Session:
    """Moves bytes between the client and the command until the command has ended."""

    def __init__(self, command: _Command, frames: Frames) -> None:
        self._command = command
        self._frames = frames
        self._input = bytearray()  # at most WINDOW_BYTES
        self._input_ends = False
        self._output = bytearray()
        self._heard_s = self._beat_s = time.monotonic()
        self._is_held = False
        self._status: int | None = None
        self._child_changed, wakeup = os.pipe()
        for descriptor in (self._child_changed, wakeup):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        os.set_blocking(0, False)
        os.set_blocking(1, False)
        os.set_blocking(command.inputs, False)

    def run(self, pending: list[tuple[Kind, bytes]]) -> None:
        for kind, content in pending:
            self._take(kind, content)
        is_gone = False
        while not is_gone and (self._status is None or self._command.outputs or self._output):
            is_gone = self._step()
        if self._status is None:
            self._command.signal(signal.SIGCONT)
            self._command.signal(signal.SIGHUP)
            end_s = time.monotonic() + _GRACE_S
            while self._status is None and time.monotonic() < end_s:
                time.sleep(0.02)
                self._wait()
            self._command.signal(signal.SIGKILL)
        elif not is_gone:
            self._output += frame(Kind.EXIT, b"%d" % self._status)
            while self._output and select.select([], [1], [], SILENCE_S)[1]:
                self._flush()
        # What is left of its process group, as when a terminal is closed.
        self._command.signal(signal.SIGHUP)

    def _step(self) -> bool:
        """Wait for something to happen, and do it; return whether the client is gone."""
        command = self._command
        readers = [
            0,
            self._child_changed,
            *(() if len(self._output) > _PIECE_BYTES else command.outputs),
        ]
        writers = [1] if self._output else []
        if command.inputs >= 0 and self._input:
            writers.append(command.inputs)
        readable, writable, _ = select.select(readers, writers, [], _PAUSE_S)
        now_s = time.monotonic()
        if 0 in readable:
            try:
                data = os.read(0, _PIECE_BYTES)
            except OSError:
                data = b""
            if not data:
                return True
            self._heard_s = now_s
            for kind, content in self._frames.feed(data):
                self._take(kind, content)
        elif now_s - self._heard_s > SILENCE_S and not self._is_held:
            return True
        for descriptor in set(readable) & set(command.outputs):
            self._read(descriptor)
        if command.inputs in writable:
            self._feed()
        if self._child_changed in readable:
            os.read(self._child_changed, _PIECE_BYTES)
        if now_s - self._beat_s >= BEAT_S and not self._output:
            self._beat_s = now_s
            self._output += frame(Kind.BEAT)
        self._wait()
        try:
            self._flush()
        except OSError:
            return True
        return False

    def _take(self, kind: Kind, content: bytes) -> None:
        if kind is Kind.INPUT:
            self._input += content
            self._feed()
        elif kind is Kind.INPUT_END:
            self._input_ends = True
            self._feed()
        elif kind is Kind.SIZE:
            self._command.resize(json.loads(content))
        elif kind is Kind.SIGNAL:
            number = int(content)
            self._is_held = number == signal.SIGSTOP
            self._command.signal(number)

    def _feed(self) -> None:
        command = self._command
        while self._input and command.inputs >= 0:
            try:
                count = os.write(command.inputs, self._input[:_PIECE_BYTES])
            except BlockingIOError:
                return
            except OSError:  # nobody reads it any more
                self._input.clear()
                self._input_ends = True
                break
            del self._input[:count]
            self._output += frame(Kind.TAKEN, b"%d" % count)
        if self._input_ends and not self._input and command.inputs >= 0:
            if command.inputs != command.terminal:
                os.close(command.inputs)
            command.inputs = -1

    def _read(self, descriptor: int) -> bool:
        """Read a piece of output; return whether there was one."""
        try:
            data = os.read(descriptor, _PIECE_BYTES)
        except BlockingIOError:
            return False
        except OSError:  # of a terminal that no process has open
            data = b""
        if data:
            self._output += frame(self._command.outputs[descriptor], data)
        else:
            del self._command.outputs[descriptor]
        return bool(data)

    def _flush(self) -> None:
        with suppress(BlockingIOError):
            while self._output:
                del self._output[: os.write(1, self._output[:_PIECE_BYTES])]

    def _wait(self) -> None:
        if self._status is not None:
            return
        pid, status = os.waitpid(self._command.pid, os.WNOHANG | os.WUNTRACED)
        if pid and os.WIFSTOPPED(status):
            if not self._is_held:
                self._is_held = True
                self._output += frame(Kind.STOPPED)
        elif pid:
            self._status = os.waitstatus_to_exitcode(status)
            # A process that it left behind may keep the streams open: read what is there by now.
            for descriptor in [*self._command.outputs]:
                os.set_blocking(descriptor, False)
                any(not self._read(descriptor) for _ in range(_LAST_PIECES))
            self._command.outputs.clear()


def _remove(folder: str | Path) -> None:
    import shutil  # noqa: PLC0415 - takes time to load

    shutil.rmtree(folder, ignore_errors=True)


def _tidy(folder: Path) -> int | None:
    """Hold the program's folder, and remove older ones that no session holds.

    Returns the descriptor of the lock, which ends with this process.
    """
    lock = None
    with suppress(OSError):
        lock = os.open(folder, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_SH)
        for other in folder.parent.iterdir():
            is_left = other.name.startswith(".host-") and other.stat().st_mtime < time.time() - 3600
            if other == folder or not (_NAME.fullmatch(other.name) or is_left):
                continue
            with suppress(OSError):
                held = os.open(other, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
                try:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(other)
                finally:
                    os.close(held)
    return lock
