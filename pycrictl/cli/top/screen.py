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

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.app import App, ComposeResult, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.events import Key, Resize
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Static

from pycrictl.cli.top import text
from pycrictl.cli.top.board import MEASURES, Board, BoardRow, Measure, State, matching, ordered
from pycrictl.show.displays.phrases import clean

_PAUSE_S: Final = 0.5
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end the screen; asyncio handles SIGINT by itself."""

AT_ONCE_S: Final = 3.0

_STYLES: Final = {
    State.SICK: Style(color="red", bold=True),
    State.PULLING: Style(color="cyan"),
    State.WAITING: Style(color="yellow"),
    State.RUNNING: Style(),
    State.ENDED: Style(dim=True),
}


class Rows(ScrollView, can_focus=True):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "move_page(-1)", show=False),
        Binding("pagedown", "move_page(1)", show=False),
        Binding("home", "move(-100000)", show=False),
        Binding("end", "move(100000)", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._rows: tuple[BoardRow, ...] = ()
        self._at = 0
        self._layout_of_rows = text.layout_of((), 80)

    @property
    def chosen(self) -> BoardRow | None:
        return self._rows[self._at] if self._at < len(self._rows) else None

    def set_rows(self, rows: tuple[BoardRow, ...]) -> None:
        key = self.chosen.key if self.chosen is not None and self._at else None
        self._rows = rows
        places = (place for place, row in enumerate(rows) if row.key == key)
        self._at = next(places, min(self._at, max(len(rows) - 1, 0)))
        self._measure()

    def _measure(self) -> None:
        columns = max(self.size.width, 1)
        self._layout_of_rows = text.layout_of(self._rows, columns)
        self.virtual_size = Size(columns, len(self._rows))
        self.refresh()
        self.call_after_refresh(self._reveal)

    def on_resize(self, _: Resize) -> None:
        self._measure()

    def action_move(self, by: int) -> None:
        self._at = min(max(self._at + by, 0), max(len(self._rows) - 1, 0))
        self._reveal()
        self.refresh()

    def _reveal(self) -> None:
        top, height = round(self.scroll_offset.y), max(self.size.height, 1)
        if not top <= self._at < top + height:
            y = self._at if self._at < top else self._at - height + 1
            self.scroll_to(y=y, animate=False, immediate=True)

    def action_move_page(self, by: int) -> None:
        self.action_move(by * max(self.size.height - 1, 1))

    def render_line(self, y: int) -> Strip:
        place = y + round(self.scroll_offset.y)
        if place >= len(self._rows):
            return Strip.blank(self.size.width)
        row = self._rows[place]
        style = _STYLES[row.state]
        if place == self._at:
            style += Style(reverse=True)
        line = text.row_line(row, self._layout_of_rows)
        return Strip([Segment(line, style)]).adjust_cell_length(self.size.width, style)


class Help(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter,question_mark", "dismiss")]

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(Text(text.HELP))

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
    Rows { height: 1fr; scrollbar-size-vertical: 0; background: ansi_default; }
    Help { background: ansi_default; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding(key.names, key.action) for key in text.KEYS]

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
        self._measure: Measure = "cpu"
        self._filter = ""
        self._is_typing = False
        self._message = ""
        self.ends_by_signals = False
        self.ended_by = 0
        self._is_over = threading.Event()

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield Rows()
        yield Static(id="keys", markup=False)

    def on_mount(self) -> None:
        if self.ends_by_signals:
            loop = asyncio.get_running_loop()
            for number in _ENDING:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    loop.add_signal_handler(number, self._end_by, number)
        self.query_one(Rows).focus()
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
        lines = text.head_lines(self._board, max(self.size.width, 1))
        self.screen_stack[0].query_one("#head", Static).update(Text("\n".join(lines)))
        rows = ordered(matching(self._board.rows, self._filter), self._measure)
        self.screen_stack[0].query_one(Rows).set_rows(rows)
        self._show_keys()

    def _show_keys(self) -> None:
        told = self._message
        if self._is_typing:
            told = f'show only rows with "{self._filter}"; enter keeps it, escape shows all'
        elif not told and self._filter:
            told = f'only rows with "{self._filter}"; escape shows all'
        shown = told or text.keys_line(max(self.size.width, 1))
        self.screen_stack[0].query_one("#keys", Static).update(Text(shown))

    def _say(self, message: str) -> None:
        self._message = clean(message)
        self._show_keys()

    @property
    def _row(self) -> BoardRow | None:
        return self.query_one(Rows).chosen

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

    def action_why(self) -> None:
        if (row := self._row) is None:
            return
        if not row.pod:
            self._say("the pod of this row is not known")
            return
        self._run(*self._why, row.pod)

    def action_inspect(self) -> None:
        if (row := self._needs_container()) is not None:
            self._run("inspect", row.id)

    def action_log(self) -> None:
        if (row := self._needs_container()) is not None:
            self._run("logs", "--follow", "--tail", "100", row.id)

    def action_shell(self) -> None:
        if (row := self._needs_container()) is not None:
            self._run("exec", "-i", "-t", row.id, "sh", stays=False)

    def action_layers(self) -> None:
        row = self._row
        if row is None or not row.image or row.state not in (State.PULLING, State.WAITING):
            self._say("this row is not waiting for a pull")
            return
        self._run("image-pull-progress", "--image", row.image)

    def _needs_container(self) -> BoardRow | None:
        row = self._row
        if row is None or not row.id:
            self._say("there is no container yet; 'w' says why")
            return None
        return row

    def _run(self, *words: str, stays: bool = True) -> None:
        """Run a command of this program in place of the screen; ``stays`` until Enter is typed."""
        beside = self._beside(self._row) if self._row is not None else ()
        try:
            with self.suspend():
                began_s = time.monotonic()
                code, is_interrupted = _run([*beside, *words])
                has_failed = code and time.monotonic() - began_s < AT_ONCE_S
                if not is_interrupted and (stays or has_failed):
                    _wait_for_enter()
        except (SuspendNotSupported, EOFError):
            self._say("that needs a terminal")
        self.refresh()


def play(app: TopApp) -> None:
    """Show the screen until the user quits or a signal arrives, which is then raised again.

    An exception raised in this program's own handlers would end up in a task of Textual.
    """
    handlers = {number: signal.getsignal(number) for number in _ENDING}
    app.ends_by_signals = True
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
