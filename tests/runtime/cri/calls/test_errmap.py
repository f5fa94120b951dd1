from __future__ import annotations

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.base.errors import PycrictlError, RuntimeFault
from pycrictl.runtime.cri.calls.errmap import MEANINGS, Status, one_line, to_error

ENDPOINT = "unix:///run/x.sock"


def error(code: str, details: str = "", **named: object) -> PycrictlError:
    arguments = {"what": 'pulling image "x"', "endpoint": ENDPOINT, **named}
    status = Status(grpc.StatusCode[code].value[0], details)
    return to_error(status, **arguments)  # type: ignore[arg-type]  # mixed types


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_every_status_is_mapped(code: grpc.StatusCode) -> None:
    meant, _ = MEANINGS[code.value[0]]
    for details in ("", "some words"):
        found = error(code.name, details)
        assert type(found) is meant
        assert isinstance(found, RuntimeFault)
        name = found.code.lower().replace("canceled", "cancelled")
        assert name == code.name.replace("_", "").lower()
        assert found.details == details
        assert 'pulling image "x"' in found.message
        assert found.message.isprintable()


@pytest.mark.parametrize(
    ("code", "details", "message"),
    [
        ("UNKNOWN", "401 Unauthorized", 'pulling image "x": 401 Unauthorized'),
        ("UNKNOWN", "", 'pulling image "x": the runtime gave no reason'),
        ("NOT_FOUND", 'image "x": not found', 'pulling image "x": image "x": not found'),
        ("NOT_FOUND", "no such tag", 'pulling image "x": not found: no such tag'),
        ("NOT_FOUND", "", 'pulling image "x": not found'),
        ("INTERNAL", "Broken.", 'pulling image "x": internal error: Broken'),
        (
            "UNAVAILABLE",
            "Socket closed",
            'pulling image "x": the runtime at "unix:///run/x.sock" is unavailable: Socket closed',
        ),
        (
            "DEADLINE_EXCEEDED",
            "context deadline exceeded",
            'pulling image "x": the runtime ran out of time: context deadline exceeded',
        ),
    ],
)
def test_wording(code: str, details: str, message: str) -> None:
    assert error(code, details).message == message


def test_a_deadline_of_ours_names_itself_and_its_flag() -> None:
    found = error("DEADLINE_EXCEEDED", "Deadline Exceeded", timeout_s=90.0)
    assert found.message == 'pulling image "x": no answer within 1m30s'
    assert found.hint is not None
    assert found.hint.endswith(" with --timeout")
    other = error("DEADLINE_EXCEEDED", timeout_s=1.0, timeout_flag="--pull-timeout")
    assert other.hint is not None
    assert other.hint.endswith(" with --pull-timeout")


def test_credentials_in_details_are_not_shown() -> None:
    found = error("UNKNOWN", 'Get "https://joe:hunter2@reg.io/?sig=abc": EOF')
    assert "hunter2" not in found.message
    assert "abc" not in found.message
    assert "reg.io" in found.message


@given(st.text())
def test_any_details_become_one_line(details: str) -> None:
    assert one_line(details).isprintable()
