from __future__ import annotations

from typing import NoReturn

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl import errors
from pycrictl.cri.calls.errmap import DETAILS_LIMIT_CHARS, KINDS, one_line, status_of, to_error
from pycrictl.errors import PycrictlError, RuntimeFault

ENDPOINT = "unix:///run/x.sock"


class Failure(grpc.RpcError, grpc.Call):
    """What grpc raises, as far as the code under test looks at it."""

    def __init__(self, code: grpc.StatusCode, details: str = "") -> None:
        super().__init__()
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def unused(self, *arguments: object) -> NoReturn:
        raise NotImplementedError

    is_active = time_remaining = cancel = initial_metadata = trailing_metadata = unused
    add_callback = unused  # type: ignore[assignment]


def error(code: str, details: str = "", **named: object) -> PycrictlError:
    arguments = {"what": 'pulling image "x"', "endpoint": ENDPOINT, **named}
    return to_error(status_of(Failure(grpc.StatusCode[code], details)), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_every_status_is_mapped(code: grpc.StatusCode) -> None:
    kind = KINDS[code.value[0]]
    for details in ("", "some words"):
        found = error(code.name, details)
        assert type(found) is kind.error
        assert isinstance(found, RuntimeFault)
        name = found.code.lower().replace("canceled", "cancelled")
        assert name == code.name.replace("_", "").lower()
        assert found.details == details
        assert 'pulling image "x"' in found.message
        assert found.message.isprintable()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("NOT_FOUND", errors.NotFound),
        ("ALREADY_EXISTS", errors.AlreadyExists),
        ("INVALID_ARGUMENT", errors.Invalid),
        ("OUT_OF_RANGE", errors.Invalid),
        ("UNIMPLEMENTED", errors.Unimplemented),
        ("RESOURCE_EXHAUSTED", errors.Exhausted),
        ("PERMISSION_DENIED", errors.Denied),
        ("UNAUTHENTICATED", errors.Denied),
        ("UNAVAILABLE", errors.Unavailable),
        ("DEADLINE_EXCEEDED", errors.DeadlineExceeded),
        ("CANCELLED", errors.Cancelled),
        ("FAILED_PRECONDITION", errors.FailedPrecondition),
        ("INTERNAL", RuntimeFault),
    ],
)
def test_classes(code: str, kind: type[RuntimeFault]) -> None:
    assert type(error(code)) is kind


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


def test_an_unknown_call_names_the_call_and_the_runtime() -> None:
    details = "unknown method ListX for service runtime.v1.RuntimeService"
    by_endpoint = error("UNIMPLEMENTED", details, what="ListX", method="ListX")
    assert by_endpoint.message == 'the runtime at "unix:///run/x.sock" does not implement ListX'
    by_name = error("UNIMPLEMENTED", details, method="ListX", runtime="containerd 1.6.20")
    assert by_name.message == 'pulling image "x": containerd 1.6.20 does not implement ListX'
    unnamed = error("UNIMPLEMENTED", "nope")
    assert unnamed.message.endswith('"unix:///run/x.sock" does not implement it: nope')


def test_an_unknown_service_is_a_server_without_the_cri() -> None:
    found = error("UNIMPLEMENTED", "unknown service runtime.v1.ImageService", method="PullImage")
    assert found.message == (
        'pulling image "x": the server at "unix:///run/x.sock" has no runtime.v1.ImageService'
    )
    assert found.hint is not None
    assert "CRI" in found.hint


def test_an_answer_beyond_the_limit() -> None:
    details = "CLIENT: Received message larger than max (17825803 vs. 16777216)"
    found = error("RESOURCE_EXHAUSTED", details)
    assert found.message == (
        'pulling image "x": the answer has 17.0 MiB, more than the limit of 16.0 MiB'
    )


def test_a_web_server_that_speaks_http2() -> None:
    found = error("UNIMPLEMENTED", "Received http2 header with status: 404")
    assert isinstance(found, errors.ConnectError)
    assert found.message == (
        '"unix:///run/x.sock" is no gRPC server: it answers with the HTTP status 404'
    )


def test_credentials_in_details_are_not_shown() -> None:
    found = error("UNKNOWN", 'Get "https://joe:hunter2@reg.io/?sig=abc": EOF')
    assert "hunter2" not in found.message
    assert "abc" not in found.message
    assert "reg.io" in found.message


def test_details_become_one_line() -> None:
    assert one_line("a\n\tb\r\n  c") == "a b c"
    assert one_line("\x1b[31mred\x07") == r"\x1b[31mred\x07"
    assert one_line("x" * 5000) == "x" * DETAILS_LIMIT_CHARS + "…"
    prefix = "failed to connect to all addresses; last error: UNKNOWN: unix:/run/x.sock: "
    assert one_line(prefix + "Connection reset") == "Connection reset"


@given(st.text())
def test_any_details_become_one_line(details: str) -> None:
    assert one_line(details).isprintable()


def test_an_error_that_is_no_call() -> None:
    found = to_error(status_of(grpc.RpcError()), what="asking", endpoint=ENDPOINT)
    assert found.message == "asking: the runtime gave no reason"
