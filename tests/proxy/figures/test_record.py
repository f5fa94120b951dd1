from __future__ import annotations

from typing import Any

import pytest

from pycrictl.proxy.figures.history import Outcome, PullRecord
from pycrictl.proxy.lookup import PodKey
from pycrictl.proxy.pulls.book import Policy, PullKey, State
from pycrictl.proxy.pulls.queue import PullQueue
from tests.proxy.figures.records import record

WEB, DB = PodKey("default", "web", "1"), PodKey("default", "db", "2")
A = PullKey("docker.io/a/b:1")


def ended(queue: PullQueue, code: str = "OK") -> PullRecord:
    call = queue.book.ended[-1]
    call.code = code
    return PullRecord.of(call, wall_s=1000.0)


def test_waiting_and_pulling() -> None:
    queue = PullQueue(1)
    queue.submit(1, A, now=0)
    queue.submit(2, PullKey("c"), now=1, pod=WEB, reference="c:1")
    queue.end(1, State.DONE, now=5)
    queue.end(2, State.DONE, now=12.5)
    found = ended(queue)
    assert (found.image, found.pod, found.ended_s) == ("c:1", "default/web", 1000.0)
    assert (found.waited_s, found.pulled_s) == (4.0, 7.5)
    assert (found.outcome, found.code, found.attempts) == (Outcome.PULLED, "OK", 1)


def test_a_caller_that_waits_for_an_equal_pull_is_pulled_after_it() -> None:
    queue = PullQueue(1)
    queue.submit(1, A, now=0, pod=WEB)
    queue.submit(2, A, now=3, pod=DB)
    queue.submit(3, A, now=4)
    queue.end(3, State.LEFT, now=5)
    found = ended(queue, "")
    assert (found.outcome, found.waited_s, found.pulled_s) == (Outcome.GONE, 1.0, 0.0)
    queue.end(1, State.DONE, now=10)
    queue.end(2, State.DONE, now=11)
    found = ended(queue)
    assert (found.is_joined, found.waited_s, found.pulled_s) == (True, 7.0, 1.0)
    queue.submit(4, A, now=20)
    queue.submit(5, A, now=21)
    queue.end(4, State.FAILED, now=22, error="denied")
    queue.end(5, State.DONE, now=23)
    assert not ended(queue).is_joined  # it was a whole attempt


def test_attempts_and_their_last_cause() -> None:
    queue = PullQueue(0)
    queue.submit(1, A, now=0, pod=WEB)
    queue.end(1, State.FAILED, now=1, error="denied")
    assert ended(queue, "Unknown").outcome is Outcome.FAILED
    queue.submit(2, A, now=2, pod=WEB)
    queue.end(2, State.DONE, now=4)
    found = ended(queue)
    assert (found.attempts, found.cause, found.outcome) == (2, "denied", Outcome.PULLED)


def test_present_gone_and_refused() -> None:
    queue = PullQueue(1, Policy.RETRY, retries=0)
    queue.submit(1, A, now=0, is_present=True)
    queue.end(1, State.DONE, now=1)
    assert ended(queue).outcome is Outcome.PRESENT
    queue.submit(2, A, now=2)
    queue.submit(3, PullKey("c"), now=2)
    assert ended(queue, "ResourceExhausted").outcome is Outcome.REFUSED
    queue.end(2, State.LEFT, now=3)
    found = ended(queue, "")
    assert (found.outcome, found.pulled_s) == (Outcome.GONE, 1.0)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"got_bytes": None, "reused_bytes": None, "extracted_bytes": None, "size_bytes": None},
        {"outcome": Outcome.FAILED, "code": "", "cause": "é\n", "pod": "", "digest": ""},
    ],
)
def test_a_document_and_back(fields: dict[str, Any]) -> None:
    before = record(**fields)
    assert PullRecord.from_document(before.document()) == before


@pytest.mark.parametrize(
    "change",
    [
        *({"ended": "now"}, {"ended": None}, {"image": 1}, {"outcome": "odd"}, {"gotBytes": "8"}),
        {"waitedSeconds": None},
    ],
)
def test_documents_that_are_none(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not the record of a pull"):
        PullRecord.from_document(record().document() | change)
