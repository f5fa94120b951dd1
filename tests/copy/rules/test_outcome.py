from __future__ import annotations

import json

import pytest

from pycrictl.base.errors import CopyError, RemoteProtocolError
from pycrictl.copy.rules.outcome import (
    MAX_BYTES,
    MAX_SKIPPED,
    Outcome,
    Summary,
    decode,
    encode_failure,
    encode_success,
)
from pycrictl.copy.rules.policy import Skipped

COPIED = Summary(files=1, directories=2, links=3, size_bytes=4, skipped=1)


def test_a_success() -> None:
    skipped = (Skipped(b"a\xff\n", "special", "it is a named pipe"),)
    text = encode_success(COPIED, skipped)
    assert json.loads(text)["status"] == "Success"
    assert decode(text) == Outcome("", COPIED, skipped)
    noted = encode_success(COPIED, skipped, "the time of some\x1b")
    assert decode(noted) == Outcome("", COPIED, skipped, r"the time of some\x1b")


@pytest.mark.parametrize(
    ("name", "count"), [("x" * 400, MAX_SKIPPED), ("x" * 4000, 50), ("\u9577" * 4000, 12)]
)
def test_not_everything_is_named(name: str, count: int) -> None:
    skipped = [Skipped(name.encode(), "rule", "reason")] * 1000
    if count == 50:
        skipped = [entry._replace(reason="reason" * 1000) for entry in skipped]
    text = encode_success(COPIED, skipped)
    assert len(text) <= MAX_BYTES
    assert decode(text).copied == COPIED
    assert len(decode(text).skipped) == count


def test_a_failure_is_for_people() -> None:
    text = encode_failure(CopyError("it is \x1b[31mbroken", hint="mend it"))
    assert json.loads(text)["reason"] == "CopyError"
    assert decode(text) == Outcome(r"it is \x1b[31mbroken (mend it)")
    without = decode(b'{"status":"Failure"}').failure
    assert without == "the server reports a failure without a reason"


@pytest.mark.parametrize(
    "copied", ["1", "[]", '{"files":-1}', '{"files":"1"}', '{"files":true}', '{"files":1e3}']
)
def test_other_servers_say_what_they_like(copied: str) -> None:
    assert decode(b'{"status":"Success","copied":%b}' % copied.encode()).copied is None


ODD_NAME = b'{"status":"Success","details":{"causes":[{"field":"\\ud800"}]}}'


@pytest.mark.parametrize("text", [b"", b"null", b"[]", b'{"a":1}', ODD_NAME, b"[" * 10_000])
def test_what_is_no_outcome(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="not a Status object"):
        decode(text)
