"""The calls of a run and the recorded calls, in a comparable form.

The comparison ignores calls with which crictl only checks that a runtime responds, streaming lists,
which this program tries first (in vain if a runtime lists in one message), and the lists in which
words that are not whole IDs are looked up, if the fake runtime does not have these lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

import pytest
from google.protobuf import json_format
from google.protobuf.message import Message

from pycrictl.runtime.cri.calls.client import method
from tests.captures import DATA, Capture, Rpc
from tests.fakecri import FakeServer

VALIDATION: Final = ("Version", "ImageFsInfo")
"""Calls with which crictl only checks that a runtime responds."""

EMPTY_FILTERS: Final[dict[str, dict[str, Any]]] = {
    "ListContainers": {"filter": {}},
    "ListImages": {"filter": {"image": {}}},
    "ListPodSandbox": {"filter": {}},
}
"""Requests for a whole list; sent even where crictl removes everything and sends no filter."""

BEFORE_ANY_CALL: Final = frozenset(
    (
        "attach-tty-mismatch", "exec-bad-transport", "exec-tty-no-i",
        "inspect-format-bad", "ps-format-bad",
        "portforward-badport", "portforward-badport-three", "portforward-remote0",
    )
)  # fmt: skip
"""Recordings whose command-line errors are found before any call is made."""

ONCE: Final = "each image is asked for once"
SELECTED: Final = "images are selected by name here, not by the runtime"
LOOKED_UP: Final = "what is no whole ID is looked up in the lists"
LOOKUPS: Final = ("ListContainers", "ListPodSandbox")

OTHER_CALLS: Final = {
    "create-bad-pod": LOOKED_UP,
    "endpoint-image-only-bad": "the image service is not asked where it is not needed",
    "exec-notfound-ctr": LOOKED_UP,
    "exec-prefix": LOOKED_UP,
    "f-images-filter-arg": SELECTED,
    "images-repo-only": SELECTED,
    "inspect-notfound": LOOKED_UP,
    "inspect-prefix": LOOKED_UP,
    "inspectp-prefix": LOOKED_UP,
    "logs-follow-exited": "a container that has ended is not asked for again",
    "logs-follow-sigint": "a container is asked for less often while its log is followed",
    "m-create-bad-enum": "enums may be given by name",
    "m-create-odd-camel": "keys that are unknown are found before any call",
    "m-rm-partial": LOOKED_UP,
    "m-rm-running-prefix": LOOKED_UP,
    "m-rmi-prune": "containers name their images, and the runtime that of pods",
    "pods-id-none-json": LOOKED_UP,
    "pods-id-prefix": LOOKED_UP,
    "ps-id": LOOKED_UP,
    "ps-image-none": ONCE + ", none when there is none of that name",
    "ps-image-tag": ONCE,
    "ps-resolve-image": ONCE,
    "ps-resolve-image-notrunc": ONCE,
    "rmp-notfound": LOOKED_UP,
    "start-notfound": LOOKED_UP,
    "stats-id": LOOKED_UP,
    "stats-positional": LOOKED_UP,
    "stop-notfound": LOOKED_UP,
    "t-rmi-prune-empty": "who uses images is not asked where there are none",
    "update-notfound": LOOKED_UP,
}
"""Recordings whose calls differ, and why."""


@dataclass(frozen=True)
class Call:
    """One call.

    Attributes:
        document: the request with proto field names.
        deadline_s: in seconds from the call; for an expected call, a ``pytest.approx``.
    """

    method: str
    document: dict[str, Any]
    deadline_s: Any

    @property
    def is_question(self) -> bool:
        """Whether this program makes such calls in parallel, where crictl makes them one by one."""
        return self.method.endswith("Status")

    @property
    def target(self) -> str:
        """The ID or image that the call is about; empty for a list."""
        ids = [self.document.get(key) for key in ("container_id", "pod_sandbox_id")]
        return str(ids[0] or ids[1] or self.document.get("image", {}).get("image", ""))


def call(name: str, request: Message, deadline_s: float | None) -> Call:
    document = json_format.MessageToDict(request, preserving_proto_field_name=True)
    return Call(name, document, deadline_s)


def calls_of(fake: FakeServer) -> list[Call]:
    return [
        call(made.method, made.request, made.deadline_s)
        for made in fake.calls
        if made.is_known or made.method not in LOOKUPS
    ]


def calls_that_count(capture: Capture) -> list[Rpc]:
    """Return the recorded calls without those that only validate the runtime.

    If a command itself makes such a call, it directly follows the validating one.
    """
    before = ["", *(rpc["rpc"] for rpc in capture.rpc)]
    return [
        rpc
        for previous, rpc in zip(before, capture.rpc, strict=False)
        if rpc["rpc"] not in VALIDATION or rpc["rpc"] == previous
    ]


def recorded_calls(capture: Capture) -> list[Call]:
    if capture.name in BEFORE_ANY_CALL:
        return []
    calls = []
    for rpc in calls_that_count(capture):
        document = rpc["request"] or EMPTY_FILTERS.get(rpc["rpc"], {})
        if "/capture/scene/logs" in (name := document.get("container_id", "")):
            document = {"container_id": name.replace("/capture/scene/logs", str(DATA / "logs"))}
        request = json_format.ParseDict(document, method(rpc["rpc"]).request_type())
        calls.append(call(rpc["rpc"], request, rpc["deadline_s"]))
    return calls


def made(calls: Iterable[Call], *, by_target: bool = False) -> list[Call]:
    """Return calls to compare; ``by_target`` ignores the order between different targets."""
    calls = [call for call in calls if not call.method.startswith("Stream")]
    if by_target:
        return sorted(calls, key=lambda call: call.target)
    # Parallel calls arrive in any order; each has a longer deadline than the one before.
    return [
        call
        for _, group in groupby(calls, key=lambda call: call.method)
        for call in sorted(group, key=lambda call: call.deadline_s if call.is_question else 0)
    ]


def expected(recorded: Iterable[Call], *, by_target: bool = False) -> list[Call]:
    """Return the recorded calls, to compare with the result of ``made``."""
    calls = []
    seen: Counter[str] = Counter()
    for call in sorted(recorded, key=lambda call: call.target if by_target else ""):
        limit_s = call.deadline_s
        if call.is_question and not by_target:
            # In parallel, each call also has the time of those before it.
            seen[call.method] += 1
            limit_s *= seen[call.method]
        calls.append(replace(call, deadline_s=pytest.approx(limit_s, abs=2.4)))
    return calls
