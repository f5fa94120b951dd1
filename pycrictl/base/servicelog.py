"""The output of a service: log lines at a limited rate, and state notifications to systemd."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import PurePath
from traceback import extract_tb
from typing import Final, TextIO

from pycrictl.base import limits

MAX_VALUE_CHARS: Final = 500

# From syslog(3).
_PRIORITIES: Final = {logging.CRITICAL: 2, logging.ERROR: 3, logging.WARNING: 4, logging.INFO: 6}
_DEBUG_PRIORITY: Final = 7


class Whole(str):
    """A value that is never truncated: its length is limited elsewhere, and its end matters."""

    __slots__ = ()


def pairs(event: str, fields: dict[str, object]) -> str:
    """Return one line: the event's name, then each field that is not empty.

    A value that is not one plain word is written as a JSON string: data from outside cannot begin a
    new line or field.
    """
    words = [event]
    for key, value in fields.items():
        if text := _bounded(value):
            words.append(f"{key}={_word(text)}")
    return " ".join(words)


def _bounded(value: object) -> str:
    text = str(value)
    is_whole = len(text) <= MAX_VALUE_CHARS or isinstance(value, Whole)
    return text if is_whole else text[:MAX_VALUE_CHARS] + "…"


def _word(text: str) -> str:
    is_plain = text.isascii() and text.isprintable() and not any(c in text for c in ' "=\\')
    return text if is_plain else json.dumps(text)


class Log:
    """Writes events and their fields to a logger."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def info(self, event: str, **fields: object) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._write(logging.WARNING, event, fields)

    def _write(self, level: int, event: str, fields: dict[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", pairs(event, fields))

    def failure(self, event: str, exc: BaseException | None, **fields: object) -> None:
        self.warning(event, **fields, **_described(exc))

    @contextmanager
    def of_library(self, name: str) -> Iterator[None]:
        """Write a library's log messages, from warnings on, as lines of this log."""
        logger = logging.getLogger(name)
        handler, before = _OfLibrary(self, name), logger.propagate
        logger.addHandler(handler)
        logger.propagate = False
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.propagate = before


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def write_to(stream: TextIO, level: LogLevel, environ: Mapping[str, str]) -> None:
    """Send the log lines of services to a stream, with priorities if it is the journal's."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_LineFormat(has_priorities=is_journal(stream, environ)))
    logger = logging.getLogger("pycrictl")
    logger.handlers = [handler]
    logger.propagate = False
    least = getattr(logging, level.name)
    # Services log their own events: other packages' messages below WARNING need level DEBUG.
    logger.setLevel(least if level is LogLevel.DEBUG else max(least, logging.WARNING))
    for service in ("proxy", "cluster.agent"):
        logging.getLogger(f"pycrictl.{service}").setLevel(least)


class _LineFormat(logging.Formatter):
    def __init__(self, *, has_priorities: bool) -> None:
        super().__init__("level=%(levelname)s %(message)s")
        self._has_priorities = has_priorities

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if not self._has_priorities:
            return text
        priority = _PRIORITIES.get(record.levelno, _DEBUG_PRIORITY)
        return "\n".join(f"<{priority}>{line}" for line in text.split("\n"))


class RateLimitedLog:
    """Logs some of the events that peers can cause at will, and the number of the others."""

    def __init__(
        self,
        write: Callable[..., None],
        event: str,
        count_s: float = limits.FAULT_COUNT_S,
        **common: object,
    ) -> None:
        self._write = write
        self._event = event
        self._count_s = count_s
        self._common = common
        self._allowance = limits.Allowance(limits.FAULT_LINES, limits.FAULT_LINES_PER_S)
        self._left_out = 0
        self.count = 0

    def __call__(self, **fields: object) -> None:
        """Report an event, in a running loop."""
        self.count += 1
        loop = asyncio.get_running_loop()
        if self._allowance.spend(loop.time()):
            self._write(self._event, **fields)
            return
        if not self._left_out:
            loop.call_later(self._count_s, self._count)
        self._left_out += 1

    def _count(self) -> None:
        self._write(self._event, **self._common, left_out=self._left_out)
        self._left_out = 0


class _OfLibrary(logging.Handler):
    def __init__(self, log: Log, name: str) -> None:
        super().__init__(logging.WARNING)
        self._log = log
        self._name = name
        self._limited = RateLimitedLog(log.warning, name)

    def emit(self, record: logging.LogRecord) -> None:
        exc = record.exc_info[1] if record.exc_info else None
        fields = {"message": record.getMessage().partition("\n")[0], **_described(exc)}
        try:
            self._limited(**fields)
        except RuntimeError:  # the loop has ended
            self._log.warning(self._name, **fields)


def _described(exc: BaseException | None) -> dict[str, object]:
    """Return the fields for an error: its one-line text, and the source lines that led to it."""
    if exc is None:
        return {}
    places = [f"{PurePath(at.filename).name}:{at.lineno}" for at in extract_tb(exc.__traceback__)]
    return {"error": repr(exc), "at": ",".join(places[-5:])}


# systemd


def notify(state: str, environ: Mapping[str, str]) -> bool:
    """Report a state to systemd, such as ``READY=1`` or ``STOPPING=1`` (sd_notify(3))."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(state.encode(), address)
    except OSError:
        return False
    return True


def watchdog_s(environ: Mapping[str, str]) -> float | None:
    text = environ.get("WATCHDOG_USEC", "")
    if not text.isdigit() or environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(text) / 1e6 or None


def is_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Return whether a stream goes to the journal, which takes priorities (sd-daemon(3))."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environ.get("JOURNAL_STREAM", "") == f"{status.st_dev}:{status.st_ino}"
