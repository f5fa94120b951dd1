"""Whether a pull is that of an image."""

from __future__ import annotations

import pytest

from pycrictl.pulls.reference import Match, match
from pycrictl.pulls.state import PullState

WHOLE = "sha256:" + "5d" * 32
OTHER = "sha256:" + "aa" * 32
NO, MAYBE, YES = Match.NO, Match.MAYBE, Match.YES


@pytest.mark.parametrize(
    ("wanted", "name", "found"),
    [
        ("busybox", "docker.io/library/busybox:latest", YES),
        ("busybox:1", "docker.io/library/busybox:1", YES),
        ("127.0.0.1:5000/demo:1", "127.0.0.1/demo@sha256:5d5d5d5d5d5d", MAYBE),
        ("127.0.0.1:5000/demo@" + WHOLE, "127.0.0.1/demo@sha256:5d5d5d5d5d5d", YES),
        ("quay.io/a:1@" + WHOLE, "quay.io/a:1", MAYBE),
        ("busybox", "docker.io/library/busybox:1", NO),
        ("busybox:2", "docker.io/library/busybox:1", NO),
        ("quay.io/busybox", "docker.io/library/busybox", NO),
        ("127.0.0.1:5000/demo:1", "127.0.0.1:5001/demo:1", NO),
        ("127.0.0.1:5000/demo@" + WHOLE, "127.0.0.1/demo@sha256:aa5d5d5d5d5d", NO),
        ("demo", "demos", NO),
    ],
)
def test_names_alone(wanted: str, name: str, found: Match) -> None:
    assert match(wanted, PullState(image=name)) is found


@pytest.mark.parametrize(
    ("candidates", "found"),
    [(("r/a:1",), YES), (("r/a:1", "r/a:2"), MAYBE), (("r/a:2", "r/a:3"), NO)],
)
def test_candidates_decide(candidates: tuple[str, ...], found: Match) -> None:
    assert match("r/a:1", PullState(image="r/a@sha256:5d5d", candidates=candidates)) is found


@pytest.mark.parametrize(("digest", "found"), [(WHOLE, YES), (OTHER, NO), ("", MAYBE)])
def test_a_digest_decides_where_it_is_known(digest: str, found: Match) -> None:
    assert match(f"r/a:1@{WHOLE}", PullState(image="r/a:1", digest=digest)) is found


@pytest.mark.parametrize(
    ("failed_s", "pull", "found"),
    [
        (60.0, PullState(image="r/a@sha256:5d5d", began_s=50.0), NO),
        (60.0, PullState(image="r/a@sha256:5d5d", began_s=70.0), MAYBE),  # the next attempt
        (60.0, PullState(image="r/a:1", began_s=50.0), YES),
        (0.0, PullState(image="r/a@sha256:5d5d", began_s=50.0), MAYBE),
    ],
)
def test_what_the_kubelet_said_after_the_pull_had_begun_wins(
    failed_s: float, pull: PullState, found: Match
) -> None:
    assert match("r/a:1", pull, failed_s=failed_s) is found
