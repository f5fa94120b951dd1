"""The host's end of a session: starts the command, and ends it when the client is gone.

It is the session's leader, and the command runs in a process group of its own in the foreground, so
that Ctrl-Z stops it as under a shell. The client beats every second; if it is silent for
``SILENCE_S``, or standard input ends, the command gets SIGHUP and, 0.5 s later, SIGKILL.
"""

from __future__ import annotations

import fcntl
import json
import os
import queue
import re
import select
import signal
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

from pycrictl import __version__
from pycrictl.environ import ON_HOST
from pycrictl.hosts.frames import BEAT_S, LOST_S, MARK, SILENCE_S, Frames, Kind, frame

_GRACE_S: Final = 0.5
_PIECE_BYTES: Final = 64 * 1024
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
    received = _received(Frames())
    said = next((content for kind, content in received if kind is Kind.START), None)
    if said is None:
        os._exit(1)
    start = json.loads(said)
    scratch = _files_of(start)
    try:
        command = _Command(start, run)
        lock = _tidy(Path(folder)) if folder else None
        command.serve(received)
        del lock
    finally:
        if scratch:
            _remove(scratch)
    os._exit(0)


def _received(frames: Frames) -> Iterator[tuple[Kind | None, bytes]]:
    """Yield frames until the client is gone, and about every ``BEAT_S`` None."""
    heard_s = beat_s = time.monotonic()
    patience_s = LOST_S
    while (now_s := time.monotonic()) - heard_s < patience_s:
        if now_s - beat_s >= BEAT_S:
            beat_s = now_s
            yield None, b""
        if not select.select([0], [], [], BEAT_S / 2)[0]:
            continue
        if not (data := os.read(0, _PIECE_BYTES)):
            return
        heard_s = time.monotonic()
        for kind, content in frames.feed(data):
            yield kind, content
            if kind is Kind.START:
                heard_s, patience_s = time.monotonic(), SILENCE_S
            elif kind is Kind.SIGNAL:  # a client that has stopped itself does not beat
                patience_s = float("inf") if int(content) == signal.SIGSTOP else SILENCE_S


class _Command:
    """The command, with a thread for each of its streams."""

    def __init__(self, start: Mapping[str, Any], run: Callable[[], NoReturn]) -> None:
        self._lock = threading.Lock()
        self._input: queue.Queue[bytes | None] = queue.Queue()
        self._is_held = False
        self._terminal = slave = -1
        terminals = start["terminals"]  # which of the three standard streams is one
        if any(terminals):
            self._terminal, slave = os.openpty()
            with suppress(OSError):  # sudo has made a session of its own
                fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
            self._resize(start["size"])
            if not terminals[0]:  # the client's is not raw, and returns the carriage itself
                mode = termios.tcgetattr(slave)
                mode[1] &= ~termios.OPOST
                termios.tcsetattr(slave, termios.TCSANOW, mode)
        pipes = [os.pipe() for _ in range(4)]
        own = [pipes[0][0], *(pipe[1] for pipe in pipes[1:])]  # the command's ends
        own[:3] = [slave if is_one else own[n] for n, is_one in enumerate(terminals)]
        self._pid = os.fork()
        if not self._pid:
            try:
                _become(own, slave, start, run)
            except Exception as exc:
                os.write(2, f"pycrictl: cannot start: {exc}\n".encode())
            finally:
                os._exit(1)
        for descriptor in {pipes[0][0], slave, *(pipe[1] for pipe in pipes[1:])} - {-1}:
            os.close(descriptor)
        outputs = dict(zip((pipe[0] for pipe in pipes[1:]), _OUTPUTS, strict=True))
        if slave >= 0:
            outputs[self._terminal] = Kind.OUTPUT if terminals[1] else Kind.ERROR
        into = self._terminal if terminals[0] else pipes[0][1]
        self._threads = [self._begin(self._copy_output, *item) for item in outputs.items()]
        self._begin(self._copy_input, into)
        self._waiter = self._begin(self._wait)

    def serve(self, received: Iterator[tuple[Kind | None, bytes]]) -> None:
        """Do what the client says until the command has ended; end it if the client is gone."""
        for kind, content in received:
            if kind is Kind.INPUT:
                self._input.put(content)
            elif kind is Kind.INPUT_END:
                self._input.put(None)
            elif kind is Kind.SIZE:
                self._resize(json.loads(content))
            elif kind is Kind.SIGNAL:
                self._is_held = int(content) == signal.SIGSTOP
                self._signal(int(content))
            elif kind is None and not self._lock.locked():
                self._send(Kind.BEAT)
        for number in (signal.SIGCONT, signal.SIGHUP, signal.SIGKILL):
            if self._waiter.is_alive():  # else another process may have the number by now
                self._signal(number)
                self._waiter.join(_GRACE_S if number == signal.SIGHUP else 0)

    def _wait(self) -> None:
        """Tell the client when the command stops and when it has ended."""
        while os.WIFSTOPPED(status := os.waitpid(self._pid, os.WUNTRACED)[1]):
            if not self._is_held:
                self._send(Kind.STOPPED)
        self._signal(signal.SIGHUP)  # to what it left behind, as when a terminal is closed
        for thread in self._threads:
            thread.join(_GRACE_S)
        self._send(Kind.EXIT, b"%d" % os.waitstatus_to_exitcode(status))

    def _copy_output(self, descriptor: int, kind: Kind) -> None:
        with suppress(OSError):  # of a terminal that no process has open
            while data := os.read(descriptor, _PIECE_BYTES):
                self._send(kind, data)

    def _copy_input(self, descriptor: int) -> None:
        with suppress(OSError):  # nobody reads it any more
            while (data := self._input.get()) is not None:
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
                self._send(Kind.TAKEN, b"%d" % len(data))
        if descriptor != self._terminal:
            os.close(descriptor)

    def _send(self, kind: Kind, content: bytes = b"") -> None:
        view = memoryview(frame(kind, content))
        with self._lock, suppress(OSError):  # the client is gone, which ``serve`` notices
            while view:
                view = view[os.write(1, view) :]

    def _resize(self, size: tuple[int, int]) -> None:
        if self._terminal >= 0:
            content = struct.pack("HHHH", size[1], size[0], 0, 0)
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, content)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, number)

    @staticmethod
    def _begin(target: Callable[..., object], *args: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=args, daemon=True)
        thread.start()
        return thread


_OUTPUTS: Final = (Kind.OUTPUT, Kind.ERROR, Kind.RECORD)


def _become(
    streams: list[int], slave: int, start: Mapping[str, Any], run: Callable[[], NoReturn]
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
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTTOU):
        signal.signal(number, signal.SIG_DFL)
    for name in start["variables"]:
        os.environ.pop(name, None)
    os.environ |= start["environ"] | {ON_HOST: start["host"]}
    sys.argv = [start["program"], *start["argv"]]
    sys.stdin = open(0, errors="surrogateescape", closefd=False)
    sys.stderr = open(2, "w", errors="backslashreplace", closefd=False, buffering=1)
    sys.stdout = open(1, "w", closefd=False)
    if (merges := start["merges"]) is not None:
        from pycrictl.show.records import Records, ToldStream  # noqa: PLC0415 - for several hosts

        sys.stdout = Records(1, records, is_terminal=merges["stdout"], is_live=merges["is_live"])
        sys.stderr = ToldStream(2, is_terminal=merges["stderr"])
    run()


def _files_of(start: dict[str, Any]) -> str:
    """Write the client's files to a folder of their own, and name them in the command line."""
    if not start["files"]:
        return ""
    from tempfile import mkdtemp  # noqa: PLC0415 - takes time to load

    scratch = mkdtemp(prefix="pycrictl-")
    for place, text in start["files"]:
        path = Path(scratch, f"{place}", Path(start["argv"][place]).name)
        path.parent.mkdir()
        path.write_bytes(text.encode("latin-1"))
        start["argv"][place] = str(path)
    return scratch


def _remove(folder: str | Path) -> None:
    import shutil  # noqa: PLC0415 - takes time to load

    shutil.rmtree(folder, ignore_errors=True)


def _tidy(folder: Path) -> int | None:
    """Hold the program's folder by the lock that is returned; remove older ones nobody holds."""
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
