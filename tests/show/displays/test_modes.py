"""The one rule of ``--progress``, for pulls and for copies: in which form, and on which stream."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

import pytest

from pycrictl.environ import Environment
from pycrictl.show.displays.copies import Progress, open_copy_display
from pycrictl.show.displays.modes import Mode, Outlet, Stdout, choose
from pycrictl.show.displays.pull_lines import open_display
from tests.show.screen import Terminal
from tests.show.views import MIB, layer, view

RULE: dict[tuple[Mode, str], tuple[str, str, str]] = {
    # What the command writes to stdout: progress, a result, nothing.
    ("auto", "terminal"): ("bar", "bar", "bar"),
    ("auto", "terminal with log lines"): ("plain", "plain", "plain"),
    ("auto", "dumb terminal"): ("plain", "plain", "plain"),
    ("auto", "terminal of unknown kind"): ("plain", "plain", "plain"),
    ("auto", "file"): ("plain", "none", "none"),
    ("bar", "terminal"): ("bar", "bar", "bar"),
    ("bar", "terminal with log lines"): ("bar", "bar", "bar"),
    ("bar", "dumb terminal"): ("plain", "plain", "plain"),
    ("bar", "file"): ("plain", "plain", "plain"),
    ("plain", "terminal"): ("plain", "plain", "plain"),
    ("plain", "file"): ("plain", "plain", "plain"),
    ("json", "terminal"): ("stdout", "stderr", "stdout"),
    ("json", "file"): ("stdout", "stderr", "stdout"),
    ("none", "terminal"): ("none", "none", "none"),
    ("none", "file"): ("none", "none", "none"),
}
TERMS = {"dumb terminal": "dumb", "terminal of unknown kind": ""}
NOTE = "pycrictl: no bars: standard error is not a terminal that can show them\n"


@contextmanager
def streams(kind: str) -> Iterator[tuple[TextIO, Callable[[], str]]]:
    """A standard error of that kind, and how to see what is on it."""
    if kind == "file":
        stderr = io.StringIO()
        yield stderr, stderr.getvalue
    else:
        with Terminal() as terminal:
            yield terminal.stderr, lambda: "".join(f"{line}\n" for line in terminal.look())


def show_pull(outlet: Outlet) -> Callable[[], None]:
    display = open_display(outlet)
    display.show(view([layer(1, progress=MIB, total=4 * MIB)]))
    return display.close


def show_copy(outlet: Outlet) -> Callable[[], None]:
    display = open_copy_display(outlet)
    if display.interval_s is not None:
        display.show(Progress(MIB, 4 * MIB, None, 60.0))
    return display.close


@pytest.mark.parametrize("family", [show_pull, show_copy])
@pytest.mark.parametrize(("mode", "kind"), RULE)
def test_the_rule(mode: Mode, kind: str, family: Callable[[Outlet], Callable[[], None]]) -> None:
    contents: tuple[Stdout, ...] = ("progress", "result", "nothing")
    for stdout, expected in zip(contents, RULE[mode, kind], strict=True):
        with streams(kind) as (stderr, on_stderr):
            objects = io.StringIO()
            environ = {"TERM": TERMS.get(kind, "xterm"), "NO_COLOR": "1"}
            env = Environment(stdout=objects, stderr=stderr, environ=environ)
            outlet = choose(mode, env, stdout=stdout, has_log="log" in kind)
            close = family(outlet)
            out, err = objects.getvalue(), on_stderr()
            close()
        is_replaced = mode == "bar" and expected == "plain"
        assert err.startswith(NOTE) == is_replaced
        err = err.removeprefix(NOTE)
        shown = {"stdout": out, "stderr": err}
        if expected in shown:
            assert '"progress": 1048576, "total": 4194304' in shown.pop(expected)
            assert set(shown.values()) == {""}
        else:
            assert out == ""
            assert ("25%|" in err) == (expected == "bar")
            assert bool(err) == (expected != "none")
        assert outlet.interval_s == (0.25 if expected == "bar" else 1.0)


def test_tqdm_is_loaded_for_bars_only() -> None:
    program = (
        "import io, sys\n"
        "from pycrictl.environ import Environment\n"
        "from pycrictl.show.displays import copies, modes, pull_lines\n"
        "env = Environment(stdout=io.StringIO(), stderr=io.StringIO(), environ={})\n"
        "for mode in ('auto', 'bar', 'plain', 'json', 'none'):\n"
        "    outlet = modes.choose(mode, env, stdout='nothing')\n"
        "    pull_lines.open_display(outlet), copies.open_copy_display(outlet)\n"
        "sys.exit('tqdm' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
