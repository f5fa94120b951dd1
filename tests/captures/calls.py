"""The calls of a run compared with the recorded ones.

Left out are the calls by which crictl only sees whether a runtime answers, and the streams of lists
that this program asks for first, in vain where a runtime lists in one message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, Final

import pytest
from google.protobuf import json_format
from google.protobuf.message import Message

from pycrictl.cri.methods import method
from tests.captures import Capture, Rpc

VALIDATION: Final = ("Version", "ImageFsInfo")
"""Calls by which crictl only sees whether a runtime answers."""

BEFORE_ANY_CALL: Final = frozenset(
    (
        *("attach-tty-mismatch", "exec-bad-transport", "exec-tty-no-i"),
        *("inspect-format-bad", "ps-format-bad"),
        *("portforward-badport", "portforward-badport-three", "portforward-remote0"),
    )
)
"""Recordings where what is wrong with the command line is found before any call."""

@dataclass(frozen=True)
class Call:
    """One call; its request by proto field names."""

    method: str
    request: Any
    deadline_s: float | None


def calls_that_count(capture: Capture) -> list[Rpc]:
    """The recorded calls less the validation.

    What a command asks itself comes behind the validation, also where that is the same call.
    """
    previous = ["", *(rpc["rpc"] for rpc in capture.rpc)]
    return [
        rpc
        for before, rpc in zip(previous, capture.rpc)
        if rpc["rpc"] not in VALIDATION or rpc["rpc"] == before
    ]
