"""What the book keeps of calls that end, and which of them are one pull."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pycrictl.proxy.lookup import PodKey
from pycrictl.proxy.pulls.book import (
    ATTEMPT_GAP_S,
    MAX_ENDED,
    MAX_ERROR_CHARS,
    MAX_FAILURES,
    Book,
    Call,
    Pull,
    PullKey,
    State,
)

WEB, DB = (PodKey("default", name, "uid") for name in ("web", "db"))
SALT = b"0123456789abcdef"
IMAGE = "docker.io/library/busybox:latest"


def test_a_key_holds_no_secret() -> None:
    key = PullKey.of(IMAGE, credentials=b"user:hunter2", salt=SALT)
    assert len(key.credentials_hash) == 64
    assert "hunter2" not in key.credentials_hash
    assert "hash" not in repr(key)
    assert key.credentials_hash not in repr(key)


def test_no_credentials_have_no_hash() -> None:
    assert PullKey.of(IMAGE, credentials=b"", salt=SALT) == PullKey(IMAGE)


@given(st.binary(min_size=1), st.binary(min_size=1))
def test_keys_are_equal_only_for_the_same_credentials(one: bytes, other: bytes) -> None:
    first = PullKey.of(IMAGE, credentials=one, salt=SALT)
    second = PullKey.of(IMAGE, credentials=other, salt=SALT)
    assert (first == second) == (one == other)
    assert first != PullKey(IMAGE)


def test_another_process_hashes_differently() -> None:
    assert PullKey.of(IMAGE, credentials=b"a", salt=SALT) != PullKey.of(
        IMAGE, credentials=b"a", salt=SALT[::-1]
    )


def test_every_field_separates() -> None:
    keys = {
        PullKey.of(image, credentials=auth, salt=SALT, runtime_handler=handler, namespace=space)
        for image in ("a", "b")
        for auth in (b"", b"x")
        for handler in ("", "kata")
        for space in ("", "default")
    }
    assert len(keys) == 16


def begin(book: Book, image: str, pod: PodKey | None = WEB, *, now: float) -> Call:
    pull = Pull(0, PullKey(image), takes_slot=True, reference=image)
    ticket = len(book.calls) + len(book.ended) + 1
    return book.begin(ticket, pull, pod=pod, reference=image, now=now)


def fail(book: Book, image: str, pod: PodKey | None = WEB, *, now: float) -> Call:
    call = begin(book, image, pod, now=now - 1)
    book.end(call, State.FAILED, now=now, error="denied")
    return call


def test_the_last_failure_of_an_image_and_pod_counts() -> None:
    book = Book()
    fail(book, "a", now=10)
    others = [fail(book, "b", now=20), fail(book, "a", DB, now=30)]
    last = fail(book, "a", now=40)
    assert book.failures() == [last, *reversed(others)]


def test_there_are_only_so_many_failures() -> None:
    book = Book()
    calls = [fail(book, f"image-{number}", now=number) for number in range(MAX_FAILURES + 3)]
    assert book.failures() == calls[:2:-1]


def test_a_long_error_is_cut() -> None:
    book = Book()
    call = begin(book, "a", now=0)
    book.end(call, State.FAILED, now=1, error="x" * 10_000)
    assert call.error == "x" * MAX_ERROR_CHARS


def test_a_prompt_attempt_continues_the_failed_one() -> None:
    book = Book()
    failed = fail(book, "a", now=10)
    call = begin(book, "a", now=10 + ATTEMPT_GAP_S)
    assert (call.asked, call.attempt, failed.is_continued) == (9, 2, True)
    assert book.failures() == []


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
