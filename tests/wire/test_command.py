from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.errors import RemoteProtocolError
from pycrictl.wire.command import (
    ExitReported,
    parse_status,
)

CAUSE = {"reason": "ExitCode", "message": "7"}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"status": "Success"}, ExitReported(0)),
        ({"status": "Success", "metadata": {}, "reason": "x"}, ExitReported(0)),
        ({"status": "Failure", "message": "m"}, ExitReported(None, "m")),
        (
            {"status": "Failure"},
            ExitReported(None, "the runtime reported a failure without a reason"),
        ),
        (
            {
                "status": "Failure",
                "message": "m",
                "reason": "NonZeroExitCode",
                "details": {"causes": [{"reason": "other"}, CAUSE]},
            },
            ExitReported(7, "m"),
        ),
        (
            {
                "status": "Failure",
                "message": "m",
                "reason": "InternalError",
                "details": {"causes": [CAUSE]},
            },
            ExitReported(None, "m"),
        ),
        (
            {"status": "Failure", "message": "m", "reason": "NonZeroExitCode", "details": None},
            ExitReported(None, "m"),
        ),
    ],
)
def test_outcomes(status: dict[str, object], expected: ExitReported) -> None:
    assert parse_status(json.dumps(status).encode()) == expected


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"x",
        b"[]",
        b"{}",
        b"null",
        b"\xff",
        b"[" * 100_000,
        b'{"status":"Failure","details":"x"}',
        b'{"status":"Failure","details":{"causes":1}}',
        b'{"status":"Failure","details":{"causes":["x"]}}',
        b'{"status":"Failure","reason":"NonZeroExitCode",'
        b'"details":{"causes":[{"reason":"ExitCode","message":7}]}}',
        b'{"status":"Failure","reason":"NonZeroExitCode",'
        b'"details":{"causes":[{"reason":"ExitCode"}]}}',
    ],
)
def test_what_is_none(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        parse_status(text)
    assert caught.value.message == "the outcome of the command is not a Status object"


@pytest.mark.parametrize(
    "code", ["seven", "", "1_0", "+1", "٣", "4294967296", "-2147483649", "9" * 5000]
)
def test_exit_status_that_is_no_number_of_32_bits(code: str) -> None:
    details = {"causes": [{"reason": "ExitCode", "message": code}]}
    status = {"status": "Failure", "reason": "NonZeroExitCode", "details": details}
    with pytest.raises(RemoteProtocolError) as caught:
        parse_status(json.dumps(status).encode())
    assert caught.value.message == "the command's exit status is not a number of 32 bits"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
statuses = st.fixed_dictionaries(
    {"status": st.sampled_from(["Failure", "Success"]) | values},
    optional={
        "message": values,
        "reason": st.sampled_from(["NonZeroExitCode"]) | values,
        "details": values
        | st.fixed_dictionaries(
            {"causes": values | st.lists(st.fixed_dictionaries({"reason": st.just("ExitCode")}))}
        ),
    },
)


@given(statuses)
def test_any_object(status: dict[str, object]) -> None:
    try:
        outcome = parse_status(json.dumps(status).encode())
    except RemoteProtocolError:
        return
    assert outcome.exit_code is None or status["status"] == "Success"
