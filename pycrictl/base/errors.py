"""All errors of the program, as exceptions with the texts that the user sees.

``exit_code`` is the program's exit status if the error ends it. The class's name is the reason in
the status of a failed copy. Errors of other kinds become these where they arise: gRPC statuses in
``errmap``, protocol violations in ``streams.wire``, ``OSError`` at the file system. All are
printed as ``pycrictl: <message>`` and the hint.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, unique
from typing import ClassVar


@unique
class ExitCode(IntEnum):
    """Exit statuses of the program, beyond those of a remote command."""

    OK = 0
    FAILURE = 1
    UNKNOWN_COMMAND = 3
    INTERNAL = 70
    INTERRUPTED = 130


def reason_of(exc: Exception) -> str:
    """Return why a system call failed, for the end of a message: ``no space left on device``."""
    return (getattr(exc, "strerror", None) or str(exc)).lower()


class PycrictlError(Exception):
    """Base of all errors that are shown to the user as one line.

    The message has no full stop and names the thing it is about in quotes; the hint says what the
    user can do about it.
    """

    exit_code: ClassVar[int] = ExitCode.FAILURE

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(PycrictlError):
    """The command line is wrong; nothing was sent."""


class OptionError(UsageError):
    """An option is unknown, lacks its value, or has an invalid one.

    ``flag_error`` is the message of Go's flag package for it, which scripts may expect.
    """

    def __init__(self, message: str, *, flag_error: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.flag_error = flag_error


class MissingArgument(UsageError):
    """The command line lacks an argument."""


class ExtraArgument(UsageError):
    """The command line has too many arguments."""


class UnknownFormat(UsageError):
    """The command has no such output format; ``output`` is quoted and printable."""

    def __init__(self, output: str, formats: Sequence[str]) -> None:
        super().__init__(
            f"unknown output format {output}", hint=f"formats are {', '.join(formats)}"
        )
        self.output = output


class UnknownCommand(UsageError):
    """The first word names no command."""

    exit_code = ExitCode.UNKNOWN_COMMAND

    def __init__(self, word: str, *, hint: str) -> None:
        super().__init__(f'unknown command "{word}"', hint=hint)
        self.topic = f"No help topic for '{word}'"  # crictl's message


class ConfigError(PycrictlError):
    """A configuration file cannot be read or holds an invalid value."""


class ConnectError(PycrictlError):
    """The endpoint cannot be reached, does not answer, or does not speak gRPC."""


class RuntimeFault(PycrictlError):
    """The runtime answered with an error status.

    Attributes:
        code: the status name as Go writes it (``NotFound``, ``Unknown``, …).
        details: the runtime's message, unchanged.
    """

    code = "Unknown"

    def __init__(
        self, message: str, *, code: str = "", details: str = "", hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.code = code or self.code
        self.details = details


class NotFound(RuntimeFault):
    """No such pod, container or image."""

    code = "NotFound"


class NothingSelected(NotFound):
    """The options select nothing."""


class AlreadyExists(RuntimeFault):
    """The name is taken."""


class Invalid(RuntimeFault):
    """The runtime refused the request's content."""


class Unimplemented(RuntimeFault):
    """The runtime does not offer this call."""

    code = "Unimplemented"


class Exhausted(RuntimeFault):
    """A quota or limit of the runtime is reached."""

    code = "ResourceExhausted"


class Denied(RuntimeFault):
    """The runtime refused the caller."""


class Unavailable(RuntimeFault):
    """The connection broke, or the runtime is shutting down."""

    code = "Unavailable"


class DeadlineExceeded(RuntimeFault):
    """The call took longer than its deadline."""


class Cancelled(RuntimeFault):
    """The call was cancelled."""

    code = "Canceled"


class FailedPrecondition(RuntimeFault):
    """The object is not in the state that the call needs."""

    code = "FailedPrecondition"


class StreamError(PycrictlError):
    """A stream could not be opened or broke."""


class LocalProtocolError(StreamError):
    """This program used a protocol wrongly: a bug to report."""

    exit_code = ExitCode.INTERNAL


class RemoteProtocolError(StreamError):
    """The peer broke the protocol."""


class UpgradeRefused(StreamError):
    """The server answered but refused the upgrade; ``body`` is the start of its response."""

    def __init__(
        self, message: str, *, status: int, body: bytes = b"", hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.body = body


class PullFailed(PycrictlError):
    """At least one of the watched pulls failed."""


class ArchiveError(PycrictlError):
    """An image archive is incomplete, invalid, or not what it claims to be."""


class CopyError(PycrictlError):
    """A copy failed; unless the message says otherwise, the destination is unchanged."""


class NoSpace(CopyError):
    """There is no space to spool a copy."""


class EntryRefused(CopyError):
    """An entry of the archive or tree breaks a rule, so nothing was copied.

    ``path`` is the entry's name, unchanged; ``rule`` is the rule's short name, stable for scripts.
    """

    def __init__(self, message: str, *, path: bytes, rule: str, reason: str) -> None:
        super().__init__(message)
        self.path = path
        self.rule = rule
        self.reason = reason


class Interrupted(PycrictlError):
    """The user ended the program; the message says what continues without it."""

    exit_code = ExitCode.INTERRUPTED
