"""What may be logged of a call shows nothing of its content."""

from __future__ import annotations

from pycrictl.proxy.relay.calls import CallRecord, CallRequest


def test_request_does_not_show_what_may_be_secret() -> None:
    request = CallRequest("/a/b", b"password", (("authorization", "token"),), 1.5)
    assert repr(request) == "CallRequest(path='/a/b', timeout_s=1.5)"


def test_record_of_a_call() -> None:
    record = CallRecord(
        path="/a/b",
        code=None,
        started=1.0,
        duration_s=0.5,
        request_bytes=5,
        response_bytes=0,
        is_own=False,
    )
    assert record.code is None
    assert record.started + record.duration_s == 1.5
