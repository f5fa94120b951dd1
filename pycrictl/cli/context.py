"""What a command is given: the environment, the configuration and the way to a runtime."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, cast

if TYPE_CHECKING:
    import typer

    from pycrictl.config import Config, Flags
    from pycrictl.cri.calls.client import CriClient
    from pycrictl.cri.calls.tracing import Tracer
    from pycrictl.environ import Environment


@dataclass(slots=True)
class AppContext:
    """Global options and everything made of them. Nothing is read or dialled before it is used.

    Attributes:
        env: streams, clocks and facts of the terminal.
        flags: the global options as given.
        tracer: gets the spans of this run's calls.
    """

    env: Environment
    flags: Flags
    tracer: Tracer | None = None
    _config: Config | None = field(default=None, init=False)

    @property
    def config(self) -> Config:
        """The effective configuration; reading it the first time shows its warnings.

        Raises:
            ConfigError: the configuration file is unreadable or invalid.
        """
        if self._config is None:
            from pycrictl import config

            self._config = config.load(self.flags, self.env.environ, executable=sys.argv[0] or None)
            for warning in self._config.warnings:
                self.env.warn(warning)
            if self._config.debug.value:
                self.env.configure_logging(debug=True)
        return self._config

    def progress_mode(self, mode: str) -> str:
        """The kind of progress to show: lines instead of bars where log lines would tear these."""
        return "plain" if mode == "auto" and self.config.debug.value else mode

    def open_client(self, service: Literal["runtime", "image"]) -> CriClient:
        """Connects to a service of the CRI; use it in a ``with`` statement.

        Raises:
            ConnectError: nothing answers at the endpoint.
        """
        from pycrictl.cri.calls.discovery import open_client

        client = open_client(self.config, service)
        client.tracer = self.tracer
        return client


def app_context(ctx: typer.Context) -> AppContext:
    """The application's context of a command's Typer context."""
    return cast("AppContext", ctx.obj)
