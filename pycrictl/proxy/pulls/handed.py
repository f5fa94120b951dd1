"""What one program of the proxy says to the next one of its pulls. Pure.

The old program goes on with the pulls that run; the new one counts them. The calls in line are made
anew to the new program, which puts them where they would stand if they had come to it.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any, Final

from pycrictl.proxy.lookup import PodKey
from pycrictl.proxy.pulls.book import Pull, PullKey
from pycrictl.proxy.relay.calls import CallRequest

ASKED: Final = "pycrictl-asked"
"""Metadata of a call that is made to a second program: when it came to the first, in seconds of the
clock that all programs of a node share (CLOCK_MONOTONIC)."""


def forwarded(request: CallRequest, asked: float) -> CallRequest:
    """Return the request for the next program."""
    return replace(request, metadata=(*request.metadata, (ASKED, repr(asked))))


def arrival(request: CallRequest, now: float) -> tuple[float | None, CallRequest]:
    """Return when a call came to the first program, if it was forwarded, and its own request."""
    asked, metadata = None, []
    for key, value in request.metadata:
        if key != ASKED:
            metadata.append((key, value))
            continue
        with contextlib.suppress(ValueError):
            given = float(value)
            asked = given if 0.0 <= given <= now else None
    return asked, request if asked is None else replace(request, metadata=tuple(metadata))


def document(pull: Pull) -> dict[str, Any]:
    """Return a running pull as JSON. Of credentials it has the hash."""
    key = pull.key
    return {
        "pull": pull.number,
        "key": [key.image, key.credentials_hash, key.runtime_handler, key.namespace],
        "takesSlot": pull.takes_slot,
        "started": pull.started,
        "calls": [
            {"pod": call.pod, "reference": call.reference, "asked": call.asked}
            for call in pull.calls.values()
        ],
    }


def key_of(pull: dict[str, Any]) -> PullKey:
    """Return the key in a document."""
    return PullKey(*map(str, pull["key"]))


def pod_of(call: dict[str, Any]) -> PodKey | None:
    """Return the pod of a call in a document."""
    return PodKey(*map(str, call["pod"])) if call["pod"] else None
