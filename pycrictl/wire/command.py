"""A remote command (exec, attach) without its transport: what it takes and reports. Pure.

``wire.channels`` has the transports. What a command is fed and what it wants sent are pieces of
the byte stream after the upgrade.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from pycrictl.errors import LocalProtocolError, RemoteProtocolError, StreamError
from pycrictl.foreign import parse

MAX_STATUS_BYTES: Final = 1 << 20
"""Longest outcome that is accepted. It repeats the command's arguments."""

_NON_ZERO: Final = "NonZeroExitCode"
_EXIT_CODE: Final = re.compile("-?[0-9]{1,10}")
_MAX_SIZE: Final = 65535
_MAX_TRIES: Final = 16


class Channel(IntEnum):
    """A stream of a command, as WebSocket numbers it."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2
    ERROR = 3
    RESIZE = 4


@dataclass(frozen=True, slots=True)
class Streams:
    """Which streams were asked for in the RPC. They must be exactly the same here."""

    stdin: bool = False
    stdout: bool = True
    stderr: bool = True
    tty: bool = False


@dataclass(frozen=True, slots=True)
class Ready:
    """All streams are there: standard input and sizes can be sent."""


@dataclass(slots=True)  # to make a frozen one takes longer than all else that a frame needs
class StdoutReceived:
    """The next bytes of the standard output; with a terminal, of both outputs.

    Whoever keeps a view keeps all of what was fed with it.
    """

    data: bytes | memoryview


@dataclass(slots=True)
class StderrReceived:
    """The next bytes of the standard error, as for the standard output."""

    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class StreamClosed:
    """The peer ended an output, or takes no more standard input."""

    channel: Channel


@dataclass(frozen=True, slots=True)
class ExitReported:
    """The outcome is known. Output may still come after it.

    Attributes:
        exit_code: the command's exit status; None if it did not start, or it is not known.
        message: what the runtime says; empty for an exit status of 0.
    """

    exit_code: int | None
    message: str = ""


Event = Ready | StdoutReceived | StderrReceived | StreamClosed | ExitReported


class OutcomeUnknown(StreamError):
    """The connection ended without an exit status. The command may even go on."""

    reference = "outcome-unknown"

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="whether the command has ended, and how, is not known")


class RemoteCommand(ABC):
    """The client's side of a command on one connection. See ``remote_command``.

    Feed it with ``receive_data`` and ``receive_eof``, then take ``events_received``, and send the
    pieces of ``data_to_send`` after each call of any method. The two feeding methods never raise
    for what the peer does: ``error`` says why it is over.

    Attributes:
        error: RemoteProtocolError if the peer broke the protocol, OutcomeUnknown if it ended
            without the outcome, StreamError if it refused a stream, else None.
        is_over: nothing more will come, or be sent. ExitReported came before, or ``error`` is set.
        can_end_stdin: whether ``end_stdin`` works.
    """

    can_end_stdin: bool

    def __init__(self, version: int, streams: Streams) -> None:
        self.error: StreamError | None = None
        self.is_over = False
        self._version = version
        self._streams = streams
        self._status = bytearray()
        self._tries_left = _MAX_TRIES
        self._is_reported = False
        self._is_stdin_ended = not streams.stdin
        self._events: list[Event] = []

    @property
    def is_ready(self) -> bool:
        """True once Ready has come."""
        return True

    @property
    def awaits_outcome_only(self) -> bool:
        """True when both outputs have ended and the outcome is not known; over SPDY only."""
        return False

    def send_stdin(self, data: bytes) -> None:
        """Send standard input. It is dropped if the peer takes no more.

        Raises:
            LocalProtocolError: before Ready, after ``end_stdin``, or without standard input.
        """
        self._require_stdin()
        if data and self._takes_stdin():
            self._send_stdin(data)

    def end_stdin(self) -> None:
        """End the standard input; the command sees its end.

        Raises:
            StreamError: this transport cannot do that.
            LocalProtocolError: before Ready, a second time, or without standard input.
        """
        self._require_stdin()
        if not self.can_end_stdin:
            raise StreamError(
                "the end of the standard input cannot be sent over this WebSocket protocol",
                hint="use the transport spdy",
            )
        self._is_stdin_ended = True
        if self._takes_stdin():
            self._end_stdin()

    def resize(self, *, width: int, height: int) -> None:
        """Tell the terminal's size in characters. One that no terminal has is left out.

        Raises:
            LocalProtocolError: before Ready, or without a terminal.
        """
        if not self._streams.tty:
            raise LocalProtocolError("a command without a terminal has no size")
        if 0 < width <= _MAX_SIZE and 0 < height <= _MAX_SIZE and not self.is_over:
            self._send_size(b'{"Width":%d,"Height":%d}\n' % (width, height))

    def events_received(self) -> list[Event]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    @abstractmethod
    def receive_data(self, data: bytes, now: float = 0.0) -> None:
        """Take in bytes from the peer at a time in seconds. They are dropped if all is over."""

    @abstractmethod
    def receive_eof(self, error: StreamError | None = None) -> None:
        """Take in that the peer sends no more, and the error if the connection broke."""

    @abstractmethod
    def data_to_send(self) -> Sequence[bytes | memoryview]:
        """Return what to send since the last call."""

    @abstractmethod
    def ping(self) -> None:
        """Ask the peer for a sign of life. Has an effect over SPDY only."""

    @abstractmethod
    def close(self) -> None:
        """Close the stream. Has an effect over WebSocket only."""

    @abstractmethod
    def _takes_stdin(self) -> bool: ...

    @abstractmethod
    def _send_stdin(self, data: bytes) -> None: ...

    @abstractmethod
    def _end_stdin(self) -> None: ...

    @abstractmethod
    def _send_size(self, text: bytes) -> None: ...

    def _require_stdin(self) -> None:
        if self._is_stdin_ended:
            raise LocalProtocolError("standard input sent to a command that takes none any more")

    def _receive(self, channel: Channel, data: bytes | memoryview) -> None:
        if channel is Channel.STDOUT and self._streams.stdout:
            self._events.append(StdoutReceived(data))
        elif channel is Channel.STDERR and self._streams.stderr:
            self._events.append(StderrReceived(data))
        elif channel is Channel.ERROR:
            self._status += data
            if len(self._status) > MAX_STATUS_BYTES:
                raise RemoteProtocolError("the outcome of the command is too long")
            self._tries_left -= 1
            if self._version >= 4 and self._tries_left >= 0:
                # The syntax of a Status object shows where it ends. A server that is stuck may
                # never end the stream.
                with suppress(RemoteProtocolError):
                    self._report()
        else:
            raise RemoteProtocolError(f"the peer sent data on the stream {channel.name.lower()}")

    def _report(self) -> None:
        """Tell the outcome once, from what came on the error stream."""
        if self._is_reported:
            return
        if self._version >= 4:
            outcome = parse_status(bytes(self._status))
        elif self._status:
            outcome = ExitReported(None, self._status.decode(errors="replace"))
        else:
            outcome = ExitReported(0)
        self._is_reported = True
        self._events.append(outcome)

    def _fail(self, error: StreamError) -> None:
        self.is_over = True
        self.error = error

    def _end(self, error: StreamError | None = None) -> None:
        self.is_over = True
        if not self._is_reported:
            reason = f": {error.message}" if error is not None else ""
            self.error = OutcomeUnknown(f"the runtime sent no exit status{reason}")


def _exit_code(text: str) -> int:
    if not _EXIT_CODE.fullmatch(text) or not -(2**31) <= int(text) < 2**32:
        raise RemoteProtocolError("the command's exit status is not a number of 32 bits")
    return int(text)


def parse_status(text: bytes) -> ExitReported:
    """Read a Status object (``metav1.Status``), the outcome of a command.

    Raises:
        RemoteProtocolError: it is none.
    """
    try:
        status = parse(text)
        outcome, message = status["status"], str(status.get("message") or "")
        causes = (status.get("details") or {}).get("causes") or []
        # The key of a cause's type is not ``type`` on the wire.
        codes = [cause.get("message") for cause in causes if cause.get("reason") == "ExitCode"]
        code = _exit_code(codes[0]) if codes and status.get("reason") == _NON_ZERO else None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise RemoteProtocolError("the outcome of the command is not a Status object") from None
    if outcome == "Success":
        return ExitReported(0)
    return ExitReported(code, message or "the runtime reported a failure without a reason")
