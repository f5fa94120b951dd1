"""Signals that end the program, wherever they interrupt it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

BEGIN = """
import os, signal
from pycrictl.base.signals import ending, raise_ending

def end(number, frame):
    raise_ending(KeyboardInterrupt())

signal.signal(signal.SIGINT, end)

class Torn:
    def __init__(self):
        os.kill(os.getpid(), signal.SIGINT)
        self.closed = False
    def __del__(self):
        assert self.closed

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
}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_an_ending_is_raised_and_nothing_else_is_said(part: str) -> None:
    command = [sys.executable, "-c", BEGIN.replace("PART", part)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


def test_signals_kill_when_nothing_is_left_to_do() -> None:
    script = """
import os, signal
from pycrictl.base.signals import let_kill
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
