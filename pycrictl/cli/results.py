"""Results of commands with several targets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from pycrictl.cri.lists import lookup
from pycrictl.errors import ExitCode, PycrictlError
from pycrictl.units import escape

if TYPE_CHECKING:
    from pycrictl.cri.calls.client import CriClient
    from pycrictl.cri.lists.lookup import Kind, ObjectRef
    from pycrictl.environ import Environment


@dataclass(slots=True)
class Results:
    env: Environment
    has_failed: bool = False

    def say(self, lines: Iterable[str]) -> None:
        """Write each line to stdout at once: the next one may take minutes."""
        for line in lines:
            self.env.stdout.write(f"{escape(line)}\n")
            self.env.stdout.flush()

    def targets(self, client: CriClient, words: Iterable[str], kind: Kind) -> list[ObjectRef]:
        found = lookup.targets(client, words, kind)
        for target in found:
            if target.name:
                self.env.note(f"{target.text} is {kind} {target.id[:13]} ({target.name})")
        return found

    def warn(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.env.warn(line)

    def fail(self, error: PycrictlError) -> None:
        self.has_failed = True
        self.env.error(error.message, hint=error.hint)

    def finish(self) -> None:
        if self.has_failed:
            raise typer.Exit(ExitCode.FAILURE)
