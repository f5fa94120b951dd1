"""What may be logged of a call shows nothing of its content."""

from __future__ import annotations

from pycrictl.proxy.relay.calls import CallRequest


def test_request_does_not_show_what_may_be_secret() -> None:
    request = CallRequest("/a/b", b"password", (("authorization", "token"),), 1.5)
    assert repr(request) == "CallRequest(path='/a/b', timeout_s=1.5)"
