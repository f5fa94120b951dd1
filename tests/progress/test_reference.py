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
    ("wanted", "known"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("busybox:1", "docker.io/library/busybox:1"),
        ("127.0.0.1:5000/demo:1", "127.0.0.1/demo@sha256:5d5d5d5d5d5d"),
        ("127.0.0.1:5000/demo@" + DIGEST, "127.0.0.1/demo@sha256:5d5d5d5d5d5d"),
        ("quay.io/a:1@" + DIGEST, "quay.io/a:1"),
    ],
)
def test_same(wanted: str, known: str) -> None:
    assert is_same_image(wanted, known)


@pytest.mark.parametrize(
    ("wanted", "known"),
    [
        ("busybox", "docker.io/library/busybox:1"),
        ("busybox:2", "docker.io/library/busybox:1"),
        ("quay.io/busybox", "docker.io/library/busybox"),
        ("127.0.0.1:5000/demo:1", "127.0.0.1:5001/demo:1"),
        ("127.0.0.1:5000/demo@" + DIGEST, "127.0.0.1/demo@sha256:aa5d5d5d5d5d"),
        ("demo", "demos"),
    ],
)
def test_different(wanted: str, known: str) -> None:
    assert not is_same_image(wanted, known)


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
