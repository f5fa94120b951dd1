from __future__ import annotations

import io
import subprocess
import sys

import pytest

from pycrictl.errors import UsageError
from pycrictl.show.displays.bars import Bars
from pycrictl.show.displays.lines import JsonLines, PlainLines, Silent
from pycrictl.show.displays.pulls import open_display
from tests.show.screen import Terminal
from tests.show.views import MIB, layer, view

XTERM = {"TERM": "xterm-256color"}


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("auto", PlainLines),
        ("bar", PlainLines),
        ("plain", PlainLines),
        ("json", JsonLines),
        ("none", Silent),
    ],
)
def test_without_a_terminal(mode: str, kind: type) -> None:
    stdout, stderr = io.StringIO(), io.StringIO()
    display = open_display(mode, stderr=stderr, stdout=stdout, environ=XTERM)
    display.close()
    assert type(display) is kind
    assert stdout.getvalue() == ""
    assert ("no bars" in stderr.getvalue()) == (mode == "bar")


@pytest.mark.parametrize(
    ("mode", "environ", "kind"),
    [
        ("auto", XTERM, Bars),
        ("bar", XTERM, Bars),
        ("auto", {**XTERM, "NO_COLOR": "1"}, Bars),
        ("auto", {"TERM": "dumb"}, PlainLines),
        ("auto", {}, PlainLines),
        ("bar", {"TERM": "dumb"}, PlainLines),
        ("plain", XTERM, PlainLines),
        ("json", XTERM, JsonLines),
        ("none", XTERM, Silent),
    ],
)
def test_on_a_terminal(mode: str, environ: dict[str, str], kind: type) -> None:
    with Terminal() as terminal:
        display = open_display(mode, stderr=terminal.stderr, stdout=io.StringIO(), environ=environ)
        display.close()
        assert type(display) is kind
        terminal.look()


def test_passes_on_what_the_displays_need() -> None:
    stdout = io.StringIO()
    display = open_display(
        "json",
        stderr=io.StringIO(),
        stdout=stdout,
        environ={},
        aggregate=True,
        wall_clock=lambda: 0.0,
    )
    display.show(view([layer(1, progress=1, total=2)]))
    assert stdout.getvalue() == (
        '{"progress": 1, "total": 2, "time": "1970-01-01T00:00:00.000Z"}\n'
    )
    with Terminal() as terminal:
        display = open_display(
            "auto", stderr=terminal.stderr, stdout=stdout, environ=XTERM, aggregate=True
        )
        display.show(view([layer(1, progress=MIB, total=2 * MIB)]))
        assert len(terminal.look()) == 1
        display.close()


def test_an_unknown_mode_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match='"rainbow"') as caught:
        open_display("rainbow", stderr=io.StringIO(), stdout=io.StringIO(), environ={})
    assert caught.value.hint == "one of auto, bar, plain, json, none"


def test_tqdm_is_loaded_for_bars_only() -> None:
    program = (
        "import io, sys\n"
        "from pycrictl.show.displays.pulls import open_display\n"
        "for mode in ('auto', 'bar', 'plain', 'json', 'none'):\n"
        "    open_display(mode, stderr=io.StringIO(), stdout=io.StringIO(), environ={})\n"
        "sys.exit('tqdm' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
