"""What the book keeps of calls that end, and which of them are one pull."""

from __future__ import annotations

from pycrictl.proxy.pulls.book import (
    ATTEMPT_GAP_S,
    MAX_ENDED,
    Book,
    CallState,
    PullCall,
    PullKey,
    QueuedPull,
)
from pycrictl.proxy.runtime_lookup import PodKey

WEB, DB = (PodKey("default", name, "uid") for name in ("web", "db"))
IMAGE = "docker.io/library/busybox:latest"


def begin(book: Book, image: str, pod: PodKey | None = WEB, *, now: float) -> PullCall:
    pull = QueuedPull(0, PullKey(image), takes_slot=True, reference=image)
    ticket = len(book.calls) + len(book.ended) + 1
    return book.begin(ticket, pull, pod=pod, reference=image, now=now)


def fail(book: Book, image: str, pod: PodKey | None = WEB, *, now: float) -> PullCall:
    call = begin(book, image, pod, now=now - 1)
    book.end(call, CallState.FAILED, now=now, error="denied")
    return call


def test_the_last_failure_of_an_image_and_pod_counts() -> None:
    book = Book()
    fail(book, "a", now=10)
    others = [fail(book, "b", now=20), fail(book, "a", DB, now=30)]
    last = fail(book, "a", now=40)
    assert book.failures() == [last, *reversed(others)]


def test_a_late_or_foreign_attempt_does_not() -> None:
    book = Book()
    failures = [fail(book, "a", now=10), fail(book, "a", None, now=10)]
    foreign = [
        begin(book, "b", now=10),
        begin(book, "a", DB, now=10),
        begin(book, "a", None, now=10),
    ]
    late = begin(book, "a", now=10.1 + ATTEMPT_GAP_S)
    assert {call.attempt for call in (*foreign, late)} == {1}
    assert book.failures() == failures[::-1]


def test_nothing_grows_with_the_number_of_calls() -> None:
    book = Book()
    for number in range(3 * MAX_ENDED):
        fail(book, f"image-{number % 7}", PodKey("n", f"p{number % 1500}", ""), now=number)
    assert len(book.ended) == MAX_ENDED
    assert sum(len(images) for images in book._by_pod.values()) <= MAX_ENDED
    assert list(book.of_pod(PodKey("n", "p0", ""))) == []
