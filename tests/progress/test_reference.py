from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.progress.reference import Reference, canonical, is_same_image, parse

DIGEST = "sha256:" + "5d" * 32


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("busybox", Reference("docker.io", "library/busybox", "", "")),
        ("me/app:1", Reference("docker.io", "me/app", "1", "")),
        ("localhost/app", Reference("localhost", "app", "", "")),
        ("127.0.0.1:5000/a/b:v1", Reference("127.0.0.1:5000", "a/b", "v1", "")),
        ("quay.io/a@" + DIGEST, Reference("quay.io", "a", "", DIGEST)),
        ("quay.io/a:v1@" + DIGEST, Reference("quay.io", "a", "v1", DIGEST)),
        ("docker.io/busybox", Reference("docker.io", "library/busybox", "", "")),
    ],
)
def test_parts(text: str, expected: Reference) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("wanted", "known", "is_same"),
    [
        ("busybox", "docker.io/library/busybox:latest", True),
        ("busybox:1", "docker.io/library/busybox:1", True),
        ("127.0.0.1:5000/demo:1", "127.0.0.1/demo@sha256:5d5d5d5d5d5d", True),
        ("127.0.0.1:5000/demo@" + DIGEST, "127.0.0.1/demo@sha256:5d5d5d5d5d5d", True),
        ("quay.io/a:1@" + DIGEST, "quay.io/a:1", True),
        ("busybox", "docker.io/library/busybox:1", False),
        ("busybox:2", "docker.io/library/busybox:1", False),
        ("quay.io/busybox", "docker.io/library/busybox", False),
        ("127.0.0.1:5000/demo:1", "127.0.0.1:5001/demo:1", False),
        ("127.0.0.1:5000/demo@" + DIGEST, "127.0.0.1/demo@sha256:aa5d5d5d5d5d", False),
        ("demo", "demos", False),
    ],
)
def test_whether_two_names_are_of_one_image(wanted: str, known: str, is_same: bool) -> None:
    assert is_same_image(wanted, known) is is_same


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("docker.io/library/busybox:latest", "docker.io/library/busybox:latest"),
        ("localhost:5000/a", "localhost:5000/a:latest"),
        ("me/app:1", "docker.io/me/app:1"),
        ("quay.io/a@" + DIGEST, "quay.io/a@" + DIGEST),
        ("quay.io/a:1@" + DIGEST, "quay.io/a@" + DIGEST),
    ],
)
def test_the_spelling_of_all_aliases(text: str, expected: str) -> None:
    assert canonical(text) == expected
    assert canonical(expected) == expected


@given(st.text(max_size=40))
def test_every_text_names_itself(text: str) -> None:
    assert is_same_image(text, text)
    assert isinstance(parse(text), Reference)
