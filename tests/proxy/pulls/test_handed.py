"""What one program says to the next one of its pulls."""

from __future__ import annotations

import json

import pytest

from pycrictl.proxy.lookup import PodKey
from pycrictl.proxy.pulls import handed
from pycrictl.proxy.pulls.book import Book, Pull, PullKey
from pycrictl.proxy.relay.calls import CallRequest

REQUEST = CallRequest("/p", b"m", metadata=(("x", "y"),))


def test_a_forwarded_call_keeps_its_time_and_nothing_of_it_reaches_the_runtime() -> None:
    assert handed.arrival(handed.forwarded(REQUEST, 12.5), now=20.0) == (12.5, REQUEST)
    assert handed.arrival(REQUEST, now=20.0) == (None, REQUEST)


@pytest.mark.parametrize("value", ["nonsense", "-1.0", "20.1", "inf", "nan"])
def test_a_time_that_cannot_be_is_no_time(value: str) -> None:
    request = CallRequest("/p", b"m", metadata=((handed.ASKED, value),))
    assert handed.arrival(request, now=20.0)[0] is None


def test_a_pull_and_its_calls_as_json() -> None:
    key = PullKey("a/b:1", "hash", "runsc", "ns")
    pull = Pull(7, key, takes_slot=True, reference="b:1", started=3.0)
    book, pod = Book(), PodKey("ns", "web", "uid")
    book.begin(1, pull, pod=pod, reference="b:1", now=2.0)
    book.begin(2, pull, pod=None, reference="a/b:1", now=2.5)
    found = json.loads(json.dumps(handed.document(pull)))
    assert handed.key_of(found) == key
    assert [handed.pod_of(call) for call in found["calls"]] == [pod, None]
    assert [call["asked"] for call in found["calls"]] == [2.0, 2.5]
    assert (found["pull"], found["takesSlot"], found["started"]) == (7, True, 3.0)
