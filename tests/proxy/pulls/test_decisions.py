from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pycrictl.proxy.pulls.decisions import PullKey

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
