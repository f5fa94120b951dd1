"""Moves a command's streams, and its terminal's size, between descriptors and a connection.

A terminal is in raw mode meanwhile, and two keys detach from the session. The loop never blocks on
a descriptor: standard input is read when it is ready, and a thread writes to an output that may
block.
"""

from __future__ import annotations

import asyncio
import os
import re
import select
import signal
import stat
import termios
import tty
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final, TextIO

from pycrictl.base.errors import StreamError
from pycrictl.base.memory import reuse_blocks
from pycrictl.base.output import descriptor_of, write_pieces
from pycrictl.streams.bytestream import ByteStream
from pycrictl.streams.loop import end_tasks, in_thread
from pycrictl.streams.wire.channels import ChannelEnded, ChannelReceived, ChannelsOpened
from pycrictl.streams.wire.command import Channel, ExitReported, RemoteCommand

READ_BYTES: Final = 256 << 10
_MAX_PIECES: Final = 1024  # IOV_MAX of Linux

_Piece = bytes | memoryview


class Input:
    """Reads a standard stream of any kind."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._fd = descriptor_of(stream)
        self._poll = select.poll()
        if self._fd is not None:
            self._poll.register(self._fd, select.POLLIN)

    async def read(self) -> bytes:
        """Return the next bytes, empty at the end. May be cancelled without losing any."""
        if self._fd is None:
            return self._stream.read(READ_BYTES).encode()
        while True:
            await asyncio.sleep(0)  # let other tasks run even if input never pauses
            if not self._poll.poll(0):
                await self._wait(self._fd)
            try:
                return os.read(self._fd, READ_BYTES)
            except BlockingIOError:
                continue
            except OSError:  # the terminal is gone
                return b""

    async def _wait(self, fd: int) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(fd, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(fd)


class Output:
    """Writes bytes to a standard stream of any kind.

    A thread writes to streams that may block, such as a pipe or a terminal, because a descriptor
    shared with other programs must not be made non-blocking. Meanwhile more bytes are received.

    Several sessions may share an output. Call ``finish``, or the last bytes may be lost.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._fd = descriptor_of(stream)
        self._turn = asyncio.Lock()
        self._writing: asyncio.Task[None] | None = None
        self._may_wait = False
        if self._fd is not None:
            stream.flush()
            mode = os.fstat(self._fd).st_mode
            is_device = stat.S_ISCHR(mode) and not os.isatty(self._fd)
            self._may_wait = not (stat.S_ISREG(mode) or is_device)

    async def write(self, *pieces: _Piece) -> None:
        """Write pieces in order; wait for what was written before."""
        if not self._may_wait:
            self._write(list(pieces) if len(pieces) <= _MAX_PIECES else [b"".join(pieces)])
            return
        async with self._turn:
            await self._written()
            data = b"".join(pieces)  # a copy, as a view may keep a larger buffer alive
            self._writing = asyncio.create_task(in_thread(lambda: self._write([data])))

    async def finish(self) -> None:
        async with self._turn:
            await self._written()

    async def _written(self) -> None:
        if self._writing is not None:
            await asyncio.shield(self._writing)

    def _write(self, pieces: list[_Piece]) -> None:
        if self._fd is None:
            self._stream.write(b"".join(pieces).decode(errors="replace"))
        else:
            write_pieces(self._fd, pieces)


DETACH_KEYS: Final = b"\x10\x11"
"""Ctrl-P, Ctrl-Q."""


class DetachKeys:
    """Finds, in typed input, the keys that detach from a session.

    The first of the keys is held back until the next key is known.
    """

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """Read typed bytes; return the bytes to send, and whether to detach after them."""
        data = self._held + data
        before, keys, _ = data.partition(DETACH_KEYS)
        if keys:
            return before, True
        self._held = DETACH_KEYS[:1] if data.endswith(DETACH_KEYS[:1]) else b""
        return data.removesuffix(self._held) if self._held else data, False


class Modes:
    """The modes of a terminal that a program's output has switched: xterm's DECSET and DECRST."""

    _switch: Final = re.compile(rb"\x1b\[\?([0-9;]{1,60})([hl])")
    _longest_bytes: Final = 64
    _on_by_default: Final = frozenset({7, 25})  # wrapped lines, the cursor
    _off_by_default: Final = frozenset(
        # cursor keys, reverse video, mouse, focus, pasting, synchronized output, other screen
        {1, 5, 9, *range(1000, 1007), 1015, 1016, 2004, 2026, 47, 1047, 1049}
    )

    def __init__(self) -> None:
        self._switched: set[int] = set()
        self._tail = b""

    def feed(self, data: _Piece) -> None:
        """Read the next bytes of the output; a sequence may be split anywhere."""
        text = self._tail + data
        for numbers, switch in self._switch.findall(text):
            modes = {int(number) for number in numbers.split(b";") if number}
            known = self._off_by_default if switch == b"h" else self._on_by_default
            self._switched = (self._switched - modes) | (modes & known)
        # The last sequence is read again with the next bytes, which is harmless.
        start = text.rfind(b"\x1b", max(0, len(text) - self._longest_bytes))
        self._tail = text[start:] if start >= 0 else b""

    def undoing(self) -> bytes:
        """Return the sequences that switch these modes back, and reset keypad and style."""
        back = (
            b"\x1b[?%d%s" % (mode, b"h" if mode in self._on_by_default else b"l")
            for mode in sorted(self._switched)
        )
        return b"".join((*back, b"\x1b>\x1b[m")) if self._switched else b""


class Terminal:
    """A terminal that may be made raw, and is restored when the ``with`` statement ends.

    ``screen`` is the descriptor of an output to a terminal, whose modes are restored too: a killed
    program may leave the alternate screen on and the cursor hidden.
    """

    def __init__(self, descriptor: int, *, screen: int | None = None) -> None:
        self._descriptor = descriptor
        self._settings = termios.tcgetattr(descriptor)
        self._screen = screen
        self._modes = Modes()

    def make_raw(self) -> None:
        """Pass on each key as it is typed, even Ctrl-C, without echo."""
        tty.setraw(self._descriptor, termios.TCSANOW)

    def size(self) -> tuple[int, int]:
        try:
            columns, rows = os.get_terminal_size(self._descriptor)
        except OSError:
            return 0, 0
        return columns, rows

    def shows(self, data: _Piece) -> None:
        if self._screen is not None:
            self._modes.feed(data)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(termios.error, OSError):  # the terminal is gone
            # Without waiting for output, which never drains on a terminal stopped by Ctrl-S.
            termios.tcsetattr(self._descriptor, termios.TCSANOW, self._settings)
            if self._screen is not None and select.select([], [self._screen], [], 0)[1]:
                os.write(self._screen, self._modes.undoing())


@dataclass(frozen=True, slots=True)
class Ends:
    """Our ends of a command's streams. A terminal is made raw once the streams are open."""

    stdout: Output
    stderr: Output
    stdin: Input | None = None
    terminal: Terminal | None = None


class Pump:
    """Moves data between a connection, which the caller still owns, and ``ends``.

    Up to two tasks run. The first receives, and the session ends with it. The other sends standard
    input once the streams are open. The second ends the first only after an error or the detach
    keys: the command may go on writing long after its input has ended.

    ``opening_s`` is how long the server may take to open the streams.
    """

    def __init__(
        self, connection: ByteStream, core: RemoteCommand, ends: Ends, *, opening_s: float
    ) -> None:
        self._connection = connection
        self._core = core
        self._ends = ends
        self._opening_s = opening_s
        self._stack = ExitStack()
        self._outcome: ExitReported | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._is_left = False

    async def run(self) -> ExitReported | None:
        """Return the outcome of the command, None after the detach keys. A terminal stays raw."""
        reuse_blocks()
        self._tasks = [asyncio.create_task(self._receive())]
        try:
            await self._tasks[0]
        except asyncio.CancelledError:
            for typing in self._tasks[1:]:
                if typing.done() and not typing.cancelled():
                    typing.result()
            if not self._is_left:
                raise
            return None
        finally:
            await end_tasks(self._tasks)
            self._stack.close()
        return self._outcome

    async def _receive(self) -> None:
        core, channels = self._core, self._core.connection
        loop = asyncio.get_running_loop()
        await self._handle_events()  # a WebSocket is ready from the beginning
        while not core.is_over:
            # Do not flush to a peer that accepts no data: it may itself be waiting for us to read.
            if not self._connection.is_full:
                self._flush()
            try:
                async with asyncio.timeout(None if core.is_ready else self._opening_s):
                    data = await self._connection.read()
            except TimeoutError:
                raise StreamError("the server did not open the streams in time") from None
            except StreamError as exc:
                channels.receive_eof(exc)
            else:
                channels.receive_data(data, loop.time()) if data else channels.receive_eof()
            await self._handle_events()
        self._flush()
        if core.error is not None:
            raise core.error

    async def _handle_events(self) -> None:
        output: Output | None = None
        held: list[_Piece] = []
        for event in self._core.events_received():
            match event:
                case ChannelReceived():
                    is_stdout = event.channel == Channel.STDOUT
                    target = self._ends.stdout if is_stdout else self._ends.stderr
                    if output is not None and target is not output:
                        await output.write(*held)
                        held.clear()
                    output = target
                    held.append(event.data)
                    if self._ends.terminal is not None:
                        self._ends.terminal.shows(event.data)
                case ChannelsOpened():
                    self._begin()
                case ExitReported():
                    self._outcome = event
                case ChannelEnded(Channel.STDIN):
                    for typing in self._tasks[1:]:
                        typing.cancel()
                case _:
                    pass
        if output is not None:
            await output.write(*held)

    def _begin(self) -> None:
        if self._ends.terminal is not None:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGWINCH, self._resize)
            self._stack.callback(loop.remove_signal_handler, signal.SIGWINCH)
            self._ends.terminal.make_raw()
            self._resize()
        if self._ends.stdin is not None:
            typing = asyncio.create_task(self._send_stdin(self._ends.stdin))
            typing.add_done_callback(self._end_typing)
            self._tasks.append(typing)

    def _end_typing(self, typing: asyncio.Task[None]) -> None:
        if not typing.cancelled() and (typing.exception() or self._is_left):
            self._tasks[0].cancel()

    def _resize(self) -> None:
        if self._ends.terminal is not None:
            width, height = self._ends.terminal.size()
            self._core.resize(width=width, height=height)
            self._flush()

    async def _send_stdin(self, stdin: Input) -> None:
        keys = DetachKeys() if self._ends.terminal is not None else None
        while data := await stdin.read():
            if keys is not None:
                data, self._is_left = keys.feed(data)
            self._core.connection.send(Channel.STDIN, data)
            self._flush()
            try:
                await self._connection.drain()
            except StreamError:  # the reading side reports it
                return
            self._flush()  # data that the reading side has held back meanwhile
            if self._is_left:
                return
        if self._core.connection.can_end:
            self._core.connection.end(Channel.STDIN)
            self._flush()

    def _flush(self) -> None:
        self._connection.send(self._core.connection.data_to_send())
