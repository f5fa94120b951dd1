"""Refusals by kubectl and the API server, as messages that say what to do."""

from __future__ import annotations

import json

import pytest

from pycrictl.base.errors import (
    ConnectError,
    Denied,
    NotFound,
    Unavailable,
    Unimplemented,
    UpgradeRefused,
    UsageError,
)
from pycrictl.cluster.kubectl import api_errors


def test_the_role_for_objects_of_kubernetes_is_view() -> None:
    text = (
        'Error from server (Forbidden): pods "web" is forbidden: User "jane" cannot get resource'
        ' "pods" in API group "" in the namespace "shop"'
    )
    error = api_errors.of_text(text, 1)
    assert isinstance(error, Denied)
    assert error.hint == "bind the ClusterRole view: see kubectl create rolebinding --help"


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("", ConnectError, "kubectl ended with status 7"),
        (
            "error: unknown flag: --x\nSee 'kubectl get --help' for usage.",
            UsageError,
            "kubectl: un",
        ),
        ("Unable to connect to the server: EOF", ConnectError, "cannot reach the API server: EOF"),
        ('Error from server (NotFound): pods "a" not found', NotFound, 'pods "a" not found'),
        ("Error from server (ServiceUnavailable): no", Unavailable, "the agent is installed but"),
    ],
)
def test_what_kubectl_writes(text: str, kind: type[Exception], message: str) -> None:
    error = api_errors.of_text(text, 7)
    assert type(error) is kind
    assert error.message.startswith(message)


@pytest.mark.parametrize("body", [b"", b"\xff", b"[]", b"null", b'{"kind":"Status","details":3}'])
@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 429, 500, 502, 503])
def test_any_answer_is_one_line(status: int, body: bytes) -> None:
    refusal = UpgradeRefused("no", status=status, body=body)
    assert api_errors.of_answer(refusal).message


GONE = {"kind": "Status", "reason": "NotFound", "message": "gone", "details": {"name": "web"}}
UNREACHED = "dial tcp 10.0.0.1:6443: connect: refused"
OFF = {"kind": "Status", "message": "Debug endpoints are disabled."}


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (404, json.dumps(GONE), NotFound, "gone"),
        (405, json.dumps(OFF), Unimplemented, f"not served for that pod: {OFF['message']}"),
        (503, '{"kind":"Status","message":"busy"}', Unavailable, "the agent answered: busy"),
        (500, f"{UNREACHED}\n", Unavailable, f"cannot reach the API server: {UNREACHED}"),
    ],
)
def test_what_the_answer_means(status: int, body: str, kind: type[Exception], message: str) -> None:
    error = api_errors.of_answer(UpgradeRefused("", status=status, body=body.encode()))
    assert (type(error), error.message) == (kind, message)
