"""What ends the program, wherever it falls."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

BEGIN = """
import os, signal, sys, time
from pycrictl.signals import ending, raise_ending

def end(number, frame):
    raise_ending(KeyboardInterrupt(), is_quiet=IS_QUIET)

signal.signal(signal.SIGINT, end)

class Torn:
    def __init__(self):
        os.kill(os.getpid(), signal.SIGINT)
        self.closed = False
    def __del__(self):
        assert self.closed

class Last:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)

async def wait():
    pass

assert ending() is None
try:
    PART
except KeyboardInterrupt:
    assert isinstance(ending(), KeyboardInterrupt)
    print("interrupted")
"""

PARTS = {
    "constructor": "Torn()",
    "coroutine": "(wait(), Torn())",
    "destructor": "Last(); time.sleep(60)",
}


def run(part: str, *, is_quiet: bool) -> tuple[str, str]:
    script = BEGIN.replace("PART", part).replace("IS_QUIET", str(is_quiet))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=True
    )
    return done.stdout, done.stderr


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_an_ending_is_raised_and_nothing_else_is_said(part: str) -> None:
    assert run(part, is_quiet=True) == ("interrupted\n", "")


@pytest.mark.parametrize(("part", "said"), [("constructor", "'closed'"), ("coroutine", "awaited")])
def test_what_was_torn_apart_can_be_reported(part: str, said: str) -> None:
    stdout, stderr = run(PARTS[part], is_quiet=False)
    assert stdout == "interrupted\n"
    assert said in stderr


def test_signals_kill_when_nothing_is_left_to_do() -> None:
    script = """
import os, signal
from pycrictl.signals import let_kill
signal.signal(signal.SIGTERM, print)
signal.signal(signal.SIGINT, signal.SIG_IGN)
let_kill()
for number in (signal.SIGINT, signal.SIGTERM):
    os.kill(os.getpid(), number)
    print("went on", flush=True)
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "went on\n")
