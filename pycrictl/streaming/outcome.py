"""A remote command that did not start, as an error."""

from __future__ import annotations

from pycrictl.errors import PycrictlError, RuntimeFault
from pycrictl.wire.command import ExitReported


class CommandMissing(RuntimeFault):
    """The command is not in the container."""

    reference = "command-missing"
    exit_code = 127


class CommandRefused(RuntimeFault):
    """The command is there but cannot be executed."""

    reference = "command-refused"
    exit_code = 126


def not_started(what: str, outcome: ExitReported) -> PycrictlError:
    """Return the error of a command that did not start; its exit status is what shells have."""
    details = outcome.message
    message = f"{what}: {details}"
    if "executable file not found" in details or "no such file or directory" in details:
        return CommandMissing(message, details=details)
    if "permission denied" in details:
        return CommandRefused(message, details=details)
    return RuntimeFault(message, details=details)
