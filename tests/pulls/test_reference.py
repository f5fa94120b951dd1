"""References of images, and whether a pull is that of an image."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.pulls.reference import Match, Reference, canonical, flaw, match, parse
from pycrictl.pulls.state import PullState

WHOLE = "sha256:" + "5d" * 32
OTHER = "sha256:" + "aa" * 32
NO, MAYBE, YES = Match.NO, Match.MAYBE, Match.YES


@pytest.mark.parametrize(
    ("wanted", "name", "expected"),
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
def test_names_alone(wanted: str, name: str, expected: Match) -> None:
    assert match(wanted, PullState(image=name)) is expected


@pytest.mark.parametrize(
    ("candidates", "expected"),
    [(("r/a:1",), YES), (("r/a:1", "r/a:2"), MAYBE), (("r/a:2", "r/a:3"), NO)],
)
def test_candidates_decide(candidates: tuple[str, ...], expected: Match) -> None:
    assert match("r/a:1", PullState(image="r/a@sha256:5d5d", candidates=candidates)) is expected


@pytest.mark.parametrize(("digest", "expected"), [(WHOLE, YES), (OTHER, NO), ("", MAYBE)])
def test_a_digest_decides_where_it_is_known(digest: str, expected: Match) -> None:
    assert match(f"r/a:1@{WHOLE}", PullState(image="r/a:1", digest=digest)) is expected


@pytest.mark.parametrize(
    ("failed_s", "pull", "expected"),
    [
        (60.0, PullState(image="r/a@sha256:5d5d", began_s=50.0), NO),
        (60.0, PullState(image="r/a@sha256:5d5d", began_s=70.0), MAYBE),  # the next attempt
        (60.0, PullState(image="r/a:1", began_s=50.0), YES),
        (0.0, PullState(image="r/a@sha256:5d5d", began_s=50.0), MAYBE),
    ],
)
def test_what_the_kubelet_said_after_the_pull_had_begun_wins(
    failed_s: float, pull: PullState, expected: Match
) -> None:
    assert match("r/a:1", pull, failed_s=failed_s) is expected


# References


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("busybox", Reference("docker.io", "library/busybox", "", "")),
        ("me/app:1", Reference("docker.io", "me/app", "1", "")),
        ("127.0.0.1:5000/a/b:v1", Reference("127.0.0.1:5000", "a/b", "v1", "")),
        ("quay.io/a@" + WHOLE, Reference("quay.io", "a", "", WHOLE)),
        ("quay.io/a:v1@" + WHOLE, Reference("quay.io", "a", "v1", WHOLE)),
    ],
)
def test_parts(text: str, expected: Reference) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("localhost:5000/a", "localhost:5000/a:latest"),
        ("quay.io/a:1@" + WHOLE, "quay.io/a@" + WHOLE),
    ],
)
def test_the_spelling_of_all_aliases(text: str, expected: str) -> None:
    assert canonical(text) == expected
    assert canonical(expected) == expected


# Names that no runtime accepts

DIGEST_TEXT = f"sha256:{'1' * 64}"


@pytest.mark.parametrize(
    "text",
    [
        *("a", "a:1", "a__b/c.d-e--f", "docker:latest", "host.Example/x:V_1.0-x"),
        *("localhost/a", "localhost:5000/a", "[::1]:5000/a:1", f"a:1@{DIGEST_TEXT}", "a" * 247),
    ],
)
def test_names_without_a_flaw(text: str) -> None:
    assert flaw(text) is None


@pytest.mark.parametrize(
    ("text", "said", "advice"),
    [
        ("https://reg.example/a:1", 'begins with "https://"', "leave that out: reg.example/a:1"),
        ("busybox ", 'its repository "busybox " is invalid', "single '.'"),
        ("registry/Shop/Big:V1", '"Shop" has upper-case letters', ": registry/shop/big:V1"),
        ("a@sha256:1234", 'its digest "sha256:1234" is invalid', "64 hexadecimal digits"),
        (f"a@{DIGEST_TEXT}1", "its digest", "64 hexadecimal digits"),
        ("a:-b", 'its tag "-b" is invalid', "a tag has up to 128"),
        (f"a:{'b' * 129}", "its tag", "a tag has up to 128"),
        ("re_g.io/a", 'its registry "re_g.io" is invalid', "HOST or HOST:PORT"),
        ("reg.io:x/a", 'its registry "reg.io:x" is invalid', "HOST or HOST:PORT"),
        ("a/", 'its repository "a/" is invalid', "single '.'"),
        ("", 'its repository "" is invalid', "single '.'"),
        ("1" * 64, "its repository", "must not be an ID"),
        ("a" * 248, "its repository", "255 characters"),
        ("app:${TAG:-1}", 'its tag "${TAG:-1}" is invalid', "a tag has up to 128"),
    ],
)
def test_the_flaw_of_a_name(text: str, said: str, advice: str) -> None:
    wrong = flaw(text)
    assert wrong is not None
    assert said in wrong.text
    assert advice in wrong.advice


@given(st.text(alphabet="aA0._-:/@ $[]", max_size=40))
def test_any_text_has_a_flaw_or_a_canonical_name(text: str) -> None:
    assert flaw(text) or flaw(canonical(text)) is None
