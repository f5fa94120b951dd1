"""Results of commands with several targets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import typer

from pycrictl.base.errors import ExitCode, PycrictlError
from pycrictl.base.units import SHORT_ID_CHARS, escape
from pycrictl.cli.context import AppContext
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.lifecycle.control import Outcome
from pycrictl.runtime.cri.lists import lookup
from pycrictl.runtime.cri.lists.lookup import Kind, ObjectRef


@dataclass(slots=True)
class Results:
    app: AppContext
    has_failed: bool = False

    def say(self, lines: Iterable[str]) -> None:
        """Write each line to stdout at once: the next one may take minutes."""
        for line in lines:
            self.app.env.stdout.write(f"{escape(line)}\n")
            self.app.env.stdout.flush()

    def targets(self, client: CriClient, words: Iterable[str], kind: Kind) -> list[ObjectRef]:
        """Resolve words; report what names stand for."""
        refs = lookup.targets(client, words, kind, as_typed=self.app.persona.is_literal)
        for ref in refs:
            if ref.name:
                self.app.env.note(f"{ref.text} is {kind} {ref.id[:SHORT_ID_CHARS]} ({ref.name})")
        return refs

    def report(self, outcomes: Iterable[Outcome], said: str = "{}") -> None:
        for outcome in outcomes:
            if outcome.error is None:
                self.say([said.format(outcome.target)])
            else:
                self.fail(outcome.error)

    def warn(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.app.env.warn(line)

    def fail(self, error: PycrictlError) -> None:
        self.has_failed = True
        self.app.env.error(error.message, hint=error.hint)

    def finish(self) -> None:
        if self.has_failed:
            raise typer.Exit(ExitCode.FAILURE)
