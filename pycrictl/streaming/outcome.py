"""A remote command that did not start, as an error."""

from __future__ import annotations

import re
from typing import Final

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


_NO_SHELL: Final = r'exec: "(?:[^"]*/)?(?:ba|da|a|z|k)?sh": '


def not_started(what: str, outcome: ExitReported) -> PycrictlError:
    """Return the error of a command that did not start; its exit status is what shells have."""
    details = outcome.message
    hint = None
    if re.search(_NO_SHELL, details):
        hint = "it has no shell: 'pycrictl cp' copies files without one"
    message = f"{what}: {details}"
    if "executable file not found" in details or "no such file or directory" in details:
        return CommandMissing(message, details=details, hint=hint)
    if "permission denied" in details:
        return CommandRefused(message, details=details)
    return RuntimeFault(message, details=details)
