"""Output that is repeated until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING, TextIO, TypeVar

from pycrictl.environ import is_dumb
from pycrictl.show.picture import Picture

if TYPE_CHECKING:
    from pycrictl.environ import Environment

T = TypeVar("T")


class Viewer:
    """Shows one text after another, on a terminal each in the place of the one before."""

    def __init__(self, env: Environment, picture: Picture | None = None) -> None:
        self._env = env
        self._picture = picture
        self._warnings: list[str] = []

    @property
    def is_in_place(self) -> bool:
        return self._picture is not None

    def show(self, write: Callable[[TextIO], object]) -> None:
        if self._picture is None:
            write(self._env.stdout)
            self._env.stdout.flush()
            return
        text = StringIO()
        write(text)
        self._picture.show(text.getvalue())

    def warn(self, text: str) -> None:
        """Show a warning; at the end, where the picture would cover it."""
        if self._picture is not None and self._env.stderr_is_terminal:
            self._warnings.append(text)
        else:
            self._env.warn(text)

    def pause(self, seconds: float) -> None:
        if self._picture is None:
            time.sleep(seconds)
        else:
            self._picture.pause(seconds)

    def repeat(self, write: Callable[[TextIO], object], *, pause_s: float) -> None:
        while True:
            self.show(write)
            self.pause(pause_s)

    def follow(
        self, fetch: Callable[[], T], write: Callable[[T, TextIO], object], *, pause_s: float
    ) -> None:
        """Show what is fetched whenever it changes; in place, as time changes it too."""
        previous: T | None = None
        while True:
            found = fetch()
            if self.is_in_place or found != previous:
                self.show(partial(write, found))
            previous = found
            self.pause(pause_s)

    def close(self) -> None:
        if self._picture is not None:
            self._picture.close()
        for text in self._warnings:
            self._env.warn(text)


@contextmanager
def until_interrupted(env: Environment, *, has_log: bool) -> Iterator[Viewer]:
    """Yield a viewer for something without end, which Ctrl-C ends without failure.

    Args:
        has_log: whether log lines go to stderr; on a terminal they would tear a picture.
    """
    is_torn = has_log and env.stderr_is_terminal
    has_picture = env.stdout_is_terminal and not is_dumb(env.environ) and not is_torn
    viewer = Viewer(env, Picture(env.stdout, env.environ) if has_picture else None)
    try:
        yield viewer
    except KeyboardInterrupt:
        pass
    finally:
        viewer.close()
