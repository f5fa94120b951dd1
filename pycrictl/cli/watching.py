"""Showing something again and again, until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING, Final, TextIO

from pycrictl.environ import is_dumb

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from pycrictl.cli.context import AppContext
    from pycrictl.environ import Environment
    from pycrictl.show.displays.picture import Picture
    from pycrictl.show.list_format import ListFormat, Views

LIST_PAUSE_S: Final = 1.0
"""Pause between two looks at a watched list."""

STATS_PAUSE_S: Final = 0.5
"""Pause between two watched measurements, beside the time that each takes."""


class View:
    """Where something is shown: in one place of a terminal, or one after the other.

    Args:
        env: has the streams.
        picture: of the terminal that standard output is; None where what was shown stays.
    """

    def __init__(self, env: Environment, picture: Picture | None) -> None:
        self._env = env
        self._picture = picture
        self._waiting: list[str] = []

    @property
    def is_in_place(self) -> bool:
        """Whether each is shown in the place of the one before."""
        return self._picture is not None

    def show(self, write: Callable[[TextIO], object]) -> None:
        """Show what a function writes.

        Raises:
            OSError: it cannot be written.
        """
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
            self._waiting.append(text)
        else:
            self._env.warn(text)

    def pause(self, seconds: float) -> None:
        """Wait before the next look."""
        if self._picture is None:
            time.sleep(seconds)
        else:
            self._picture.pause(seconds)

    def close(self) -> None:
        """Leave what is shown, and show the warnings that had to wait."""
        if self._picture is not None:
            self._picture.close()
        for text in self._waiting:
            self._env.warn(text)


@contextmanager
def until_interrupted(app: AppContext) -> Iterator[View]:
    """Open a view to show something again and again; Ctrl-C ends that and is not a failure."""
    view = View(app.env, _picture(app))
    try:
        yield view
    except KeyboardInterrupt:
        pass
    finally:
        view.close()


def repeat(app: AppContext, write: Callable[[TextIO], object], *, pause_s: float) -> None:
    """Show what a function writes again and again, until Ctrl-C."""
    with until_interrupted(app) as view:
        while True:
            view.show(write)
            view.pause(pause_s)


def show_list(
    app: AppContext,
    fetch: Callable[[], Sequence[Message]],
    chosen: ListFormat,
    views: Views,
    *,
    watch: bool,
) -> None:
    """Write a list, once or as often as it changes.

    On a terminal a watched list follows its ages as well; elsewhere it is written as a whole after
    each change.
    """
    if not watch:
        chosen.write(fetch(), views, app.env.stdout)
        return
    previous: Sequence[Message] | None = None
    with until_interrupted(app) as view:
        while True:
            found = fetch()
            if view.is_in_place or found != previous:
                view.show(partial(chosen.write, found, views))
            previous = found
            view.pause(LIST_PAUSE_S)


def _picture(app: AppContext) -> Picture | None:
    env = app.env
    if not env.stdout_is_terminal or is_dumb(env.environ):
        return None
    if app.config.debug.value and env.stderr_is_terminal:  # log lines would tear it
        return None
    from pycrictl.show.displays.picture import Picture

    return Picture(env.stdout, env.environ)
