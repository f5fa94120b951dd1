from __future__ import annotations

from pycrictl.proxy.pulls.failures import ATTEMPT_GAP_S, MAX_ERROR_CHARS, MAX_FAILURES, FailureLog


def add(log: FailureLog, image: str, pod: str = "default/web", *, now: float) -> None:
    log.add(image, pod, error="denied", asked=now - 1, attempt=1, now=now)


def test_a_new_failure_replaces_the_last_of_the_same_image_and_pod() -> None:
    log = FailureLog()
    add(log, "a", now=10)
    add(log, "b", now=20)
    add(log, "a", "default/db", now=30)
    add(log, "a", now=40)
    assert [(f.image, f.pod, f.at) for f in log.entries()] == [
        ("b", "default/web", 20),
        ("a", "default/db", 30),
        ("a", "default/web", 40),
    ]


def test_the_oldest_go_when_there_are_too_many() -> None:
    log = FailureLog()
    for number in range(MAX_FAILURES + 3):
        add(log, f"image-{number}", now=number)
    assert len(log.entries()) == MAX_FAILURES
    assert log.entries()[0].image == "image-3"


def test_a_long_error_is_cut() -> None:
    log = FailureLog()
    log.add("a", "", error="x" * 10_000, asked=0, attempt=1, now=1)
    assert log.entries()[0].error == "x" * MAX_ERROR_CHARS


def test_a_prompt_attempt_continues_the_failed_one() -> None:
    log = FailureLog()
    add(log, "a", now=10)
    failure = log.resume("a", "default/web", now=10 + ATTEMPT_GAP_S)
    assert failure is not None
    assert (failure.asked, failure.at, failure.attempts) == (9, 10, 1)
    assert log.entries() == ()


def test_a_late_or_foreign_attempt_does_not() -> None:
    log = FailureLog()
    add(log, "a", now=10)
    add(log, "a", "", now=10)
    assert log.resume("a", "default/web", now=10.1 + ATTEMPT_GAP_S) is None
    assert log.resume("b", "default/web", now=10) is None
    assert log.resume("a", "default/db", now=10) is None
    assert log.resume("a", "", now=10) is None
    assert len(log.entries()) == 2
