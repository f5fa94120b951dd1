"""The context of a command: environment, configuration and clients."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import typer

from pycrictl.base import config, noderoot
from pycrictl.base.errors import ExitCode, PycrictlError
from pycrictl.base.units import escape
from pycrictl.show.render import colours_are_wanted

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pycrictl.base.config import Config, Flags
    from pycrictl.base.environ import Environment
    from pycrictl.cli.persona import Persona
    from pycrictl.copy.methods import Opened
    from pycrictl.runtime.cri.calls.client import CriClient
    from pycrictl.show.displays import Mode
    from pycrictl.show.displays.block import Viewer
    from pycrictl.show.displays.outlet import Outlet, Stdout
    from pycrictl.show.records import Events


class AppContext:
    """Global options and everything derived from them; files and sockets are opened on first use.

    ``command`` is the name of the command, ``active`` the click context that was made last.
    ``handed_on`` are options that a plugin hands on to kubectl; ``host_root`` is None if not given.
    For other hosts, ``copies_elsewhere`` has the methods of ``cp``, and ``top_elsewhere`` runs
    ``top`` there.
    """

    def __init__(self, env: Environment, flags: Flags, persona: Persona) -> None:
        self.env = env
        self.flags = flags
        self.persona = persona
        self.command = ""
        self.active: typer.Context | None = None
        self.copies_elsewhere: Opened | None = None
        self.top_elsewhere: tuple[Sequence[str], Callable[..., Events]] | None = None
        self.handed_on: list[str] = []
        self.host_root: str | None = None
        self._config: Config | None = None

    def use_root(self) -> None:
        noderoot.use(find_root() if self.host_root is None else self.host_root)

    @property
    def program(self) -> str:
        return self.env.program

    @property
    def config(self) -> Config:
        """The effective configuration; the first access shows its warnings."""
        if self._config is None:
            program = sys.executable if getattr(sys, "frozen", False) else sys.argv[0]
            # A mere name, as from PATH, would mean a file in the working directory.
            executable = program if "/" in program else None
            self._config = config.load(self.flags, self.env.environ, executable=executable)
            is_named = self.flags.config is not None or "CRI_CONFIG_FILE" in self.env.environ
            warnings = self.persona.configuration_warnings(self._config.warnings, is_named=is_named)
            for warning in warnings:
                self.env.warn(warning)
            if self._config.debug:
                self.env.configure_logging(debug=True)
        return self._config

    def outlet(self, mode: Mode, *, stdout: Stdout) -> Outlet:
        from pycrictl.show.displays.outlet import choose  # noqa: PLC0415 - only for bars

        return choose(mode, self.env, stdout=stdout, has_log=self.config.debug)

    @property
    def columns(self) -> int:
        """Columns of the terminal that tables must fit; 0 if they need not."""
        return 0 if self.persona.is_crictl else self.env.columns

    @property
    def is_coloured(self) -> bool:
        is_terminal = self.env.stdout_is_terminal and not self.persona.is_crictl
        return colours_are_wanted(self.env.environ, is_terminal=is_terminal)

    def until_interrupted(self) -> AbstractContextManager[Viewer]:
        from pycrictl.show.displays.block import until_interrupted  # noqa: PLC0415 - only for --watch

        return until_interrupted(self.env, has_log=self.config.debug)

    def open_client(self, service: Literal["runtime", "image"]) -> CriClient:
        from pycrictl.runtime.cri.calls import endpoints  # noqa: PLC0415 - help and plugins need no gRPC

        note = self.env.note if self.env.stderr_is_terminal else lambda text: None
        return endpoints.open_client(self.config, service, note=note)

    @contextmanager
    def open_clients(self, *, needs_images: bool) -> Iterator[tuple[CriClient, CriClient]]:
        """Connect to the runtime service and to the image service.

        Yields the same client twice if they share a socket, or if images are not needed, so that a
        broken image service affects nothing else.
        """
        with self.open_client("runtime") as client:
            is_apart = self.config.image_endpoint != self.config.runtime_endpoint
            if not (
                is_apart and (needs_images or self.persona.is_crictl)
            ):  # crictl always uses both
                yield client, client
            else:
                with self.open_client("image") as images:
                    yield client, images

    @contextmanager
    def open_runtime_beside(self, images: CriClient) -> Iterator[CriClient]:
        if self.config.runtime_endpoint == self.config.image_endpoint:
            yield images
        else:
            with self.open_client("runtime") as runtime:
                yield runtime


class Results:
    """Results of a command with several targets: each failure is reported, the rest goes on."""

    def __init__(self, app: AppContext) -> None:
        self.app = app
        self.has_failed = False

    def say(self, lines: Iterable[str]) -> None:
        """Write each line to stdout at once: the next one may take minutes."""
        for line in lines:
            self.app.env.stdout.write(f"{escape(line)}\n")
            self.app.env.stdout.flush()

    def fail(self, error: PycrictlError) -> None:
        self.has_failed = True
        self.app.env.error(error.message, hint=error.hint)

    def finish(self) -> None:
        if self.has_failed:
            raise typer.Exit(ExitCode.FAILURE)


def find_root() -> str:
    if not noderoot.is_node(noderoot.DEBUG_ROOT):
        return "/"
    from pycrictl.runtime.cri.calls.endpoints import ENDPOINTS  # noqa: PLC0415 - needs gRPC

    has_runtime = any(os.path.lexists(endpoint.removeprefix("unix://")) for endpoint in ENDPOINTS)
    return "/" if has_runtime else noderoot.DEBUG_ROOT
