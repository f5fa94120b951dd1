"""The live screen of a node; the only module that imports textual."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from rich.style import Style
from rich.text import Text
from textual.app import App, ComposeResult, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.events import Key, Resize
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widgets import OptionList, Static

from pycrictl.cli.top.board import (
    HELP,
    KEYS,
    MEASURES,
    Board,
    BoardRow,
    Measure,
    State,
    head_lines,
    layout_of,
    matching,
    ordered,
    row_line,
)
from pycrictl.show.displays.phrases import clean, cut

_PAUSE_S: Final = 0.5
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end the screen; asyncio handles SIGINT by itself."""

_STYLES: Final = {
    State.SICK: Style(color="red", bold=True),
    State.PULLING: Style(color="cyan"),
    State.WAITING: Style(color="yellow"),
    State.RUNNING: Style(),
    State.ENDED: Style(dim=True),
}


class Rows(OptionList):
    def render_line(self, y: int) -> Strip:
        """Show the chosen row in reverse: the styles of an option know no reverse."""
        strip = super().render_line(y)
        is_chosen = y + self.scroll_offset.y == self.highlighted
        return strip.apply_style(Style(reverse=True)) if is_chosen else strip


class Help(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter,question_mark", "dismiss")]

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(HELP, markup=False)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()


class TopApp(App[None]):
    """The screen.

    Args:
        look: returns what to show; called in a thread.
        beside: begins a command line of this program for a row.
        why: ``why`` with its options.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; background: ansi_default; color: ansi_default; }
    #head, #keys { height: auto; }
    #keys { text-style: dim; }
    Rows { height: 1fr; scrollbar-size-vertical: 0; }
    Rows, Rows > .option-list--option-highlighted, Rows > .option-list--option-hover {
        background: ansi_default; color: ansi_default;
    }
    Help { background: ansi_default; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "on_container('logs --follow --tail 100 ID')"),
        Binding("e", "on_container('exec -i -t ID sh')"),
        Binding("w", "why"),
        Binding("i", "on_container('inspect ID')"),
        Binding("p", "layers"),
        Binding("s", "sort"),
        Binding("slash", "filter"),
        Binding("escape", "show_all"),
        Binding("question_mark", "help"),
        Binding("q,ctrl+c", "quit"),
        Binding("ctrl+z", "suspend_process"),
    ]

    def __init__(
        self,
        look: Callable[[], Board],
        beside: Callable[[BoardRow], Sequence[str]],
        why: Sequence[str],
        interval_s: float,
    ) -> None:
        super().__init__(ansi_color=True)
        self._look, self._beside, self._why, self._interval_s = look, beside, why, interval_s
        self._board: Board | None = None
        self._rows: tuple[BoardRow, ...] = ()
        self._measure: Measure = "cpu"
        self._filter = ""
        self._is_typing = False
        self._message = ""
        self.ended_by = 0
        self._is_over = threading.Event()

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield Rows(compact=True)
        yield Static(id="keys", markup=False)

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in _ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._end_by, number)
        self._show_keys()
        threading.Thread(target=self._look_on, daemon=True).start()

    def _end_by(self, number: int) -> None:
        self.ended_by = self.ended_by or number
        self.exit()

    def on_unmount(self) -> None:
        self._is_over.set()

    def on_resize(self, _: Resize) -> None:
        self.call_after_refresh(self._draw)

    def _look_on(self) -> None:
        while not self._is_over.is_set():
            board = self._look()
            if self._is_over.is_set():
                return
            try:
                self.call_from_thread(self.show_board, board)
            except RuntimeError:  # the app has ended meanwhile
                return
            self._is_over.wait(self._interval_s)

    def show_board(self, board: Board) -> None:
        self._board = board
        self._draw()

    def _draw(self) -> None:
        if self._board is None or not self.is_running:
            return
        columns = max(self.size.width, 1)
        head = self.screen_stack[0].query_one("#head", Static)
        head.update("\n".join(head_lines(self._board, columns)))
        rows = self.screen_stack[0].query_one(Rows)
        top, at, chosen = rows.scroll_offset.y, rows.highlighted or 0, self._row
        self._rows = ordered(matching(self._board.rows, self._filter), self._measure)
        layout = layout_of(self._rows, columns)
        rows.set_options(Text(row_line(row, layout), _STYLES[row.state]) for row in self._rows)
        if at and chosen is not None:  # it stays chosen; the first row is whatever comes first
            places = (place for place, row in enumerate(self._rows) if row.key == chosen.key)
            at = next(places, at)
        rows.scroll_to(y=top, animate=False, immediate=True)
        rows.highlighted = min(at, len(self._rows) - 1) if self._rows else None
        self._show_keys()

    def _show_keys(self) -> None:
        told = self._message
        if self._is_typing:
            told = f'show only rows with "{self._filter}"; enter keeps it, escape shows all'
        elif not told and self._filter:
            told = f'only rows with "{self._filter}"; escape shows all'
        shown = cut(told or KEYS, max(self.size.width, 1))
        self.screen_stack[0].query_one("#keys", Static).update(shown)

    def _say(self, message: str) -> None:
        self._message = clean(message)
        self._show_keys()

    @property
    def _row(self) -> BoardRow | None:
        at = self.screen_stack[0].query_one(Rows).highlighted
        return self._rows[at] if at is not None and at < len(self._rows) else None

    # Keys

    def action_help(self) -> None:
        self.push_screen(Help())

    def action_sort(self) -> None:
        self._measure = MEASURES[(MEASURES.index(self._measure) + 1) % len(MEASURES)]
        self._draw()
        self._say(f"sorted by {self._measure}")

    def action_filter(self) -> None:
        self._is_typing, self._message = True, ""
        self._show_keys()

    def on_key(self, event: Key) -> None:
        """Handle keys typed into the filter, in order, before their bindings."""
        if not self._is_typing or isinstance(self.screen, ModalScreen):
            return
        if event.key in ("enter", "escape"):
            self._is_typing = False
            self._filter = self._filter if event.key == "enter" else ""
        elif event.key == "backspace":
            self._filter = self._filter[:-1]
        elif event.is_printable and event.character:
            self._filter += event.character
        else:
            return
        event.prevent_default()
        self._draw()

    def action_show_all(self) -> None:
        self._filter = self._message = ""
        self._draw()

    def on_option_list_option_selected(self) -> None:
        self.action_why()

    def action_why(self) -> None:
        if (row := self._row) is None:
            return
        if not row.pod:
            self._say("the pod of this row is not known")
            return
        self._run(*self._why, row.pod)

    def action_on_container(self, line: str) -> None:
        """Run a command about the container of the row, whose ID takes the place of ``ID``."""
        if (row := self._row) is None or not row.id:
            self._say("there is no container yet; 'w' says why")
            return
        self._run(*line.replace("ID", row.id).split())

    def action_layers(self) -> None:
        row = self._row
        if row is None or not row.image or row.state not in (State.PULLING, State.WAITING):
            self._say("this row is not waiting for a pull")
            return
        self._run("image-pull-progress", "--image", row.image)

    def _run(self, *words: str) -> None:
        """Run a command of this program in place of the screen, until Enter is typed."""
        beside = self._beside(self._row) if self._row is not None else ()
        try:
            with self.suspend():
                code, is_interrupted = _run([*beside, *words])
                if not is_interrupted and (code or words[0] != "exec"):
                    _wait_for_enter()
        except (SuspendNotSupported, EOFError):
            self._say("that needs a terminal")
        self.refresh()


def play(app: TopApp) -> None:
    """Show the screen until the user quits or a signal arrives, which is then raised again.

    An exception raised in this program's own handlers would end up in a task of Textual.
    """
    handlers = {number: signal.getsignal(number) for number in _ENDING}
    if os.isatty(0):
        threading.Thread(target=_end_with_terminal, daemon=True).start()
    try:
        app.run()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if app.ended_by:
        signal.raise_signal(app.ended_by)


def _end_with_terminal() -> None:
    """End the program when the terminal is closed.

    Textual does not detect this: it reads end of file over and over, and may wait forever for its
    writer thread, which has failed.
    """
    while os.isatty(0):
        time.sleep(_PAUSE_S)
    os._exit(128 + signal.SIGHUP)


def _run(words: Sequence[str]) -> tuple[int, bool]:
    """Run a program; return its exit status, and whether Ctrl-C was typed (handled by it alone)."""
    typed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: typed.append(number))
    try:
        return subprocess.run(words, check=False).returncode, bool(typed)
    finally:
        signal.signal(signal.SIGINT, before)


def _wait_for_enter() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        input("Enter goes back ")
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGINT, before)
