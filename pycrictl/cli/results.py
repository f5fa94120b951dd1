"""What commands with several targets report of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pycrictl.cli.context import Exit
from pycrictl.errors import ExitCode, PycrictlError
from pycrictl.units import escape

if TYPE_CHECKING:
    from pycrictl.cri.lists.lookup import Kind, Target
    from pycrictl.environ import Environment


@dataclass(slots=True)
class Results:
    """Reports each result as it comes, and in the end whether all went well."""

    env: Environment
    has_failed: bool = False

    def say(self, lines: Iterable[str]) -> None:
        """Write each line to stdout at once: the next one may take minutes."""
        for line in lines:
            self.env.stdout.write(f"{escape(line)}\n")
            self.env.stdout.flush()

    def identify(self, targets: Iterable[Target], kind: Kind) -> None:
        """Say on stderr which container or pod each name stands for; IDs speak for themselves."""
        for target in targets:
            if target.name:
                self.env.note(f"{target.text} is {kind} {target.id[:13]} ({target.name})")

    def warn(self, lines: Iterable[str]) -> None:
        """Warn of what went wrong beside the results."""
        for line in lines:
            self.env.warn(line)

    def fail(self, error: PycrictlError) -> None:
        """Report an error that does not end the command."""
        self.has_failed = True
        self.env.error(error.message, hint=error.hint)

    def finish(self) -> None:
        """End a command that has failed for some target.

        Raises:
            Exit: with the status 1.
        """
        if self.has_failed:
            raise Exit(ExitCode.FAILURE)
