"""Which of several methods is taken."""

from __future__ import annotations

import logging

import pytest

from pycrictl.copy.exec.over_exec import OverExec
from pycrictl.copy.exec.remote import Remote
from pycrictl.copy.method import NAMES, Method, first_to_serve
from pycrictl.copy.node import on_node
from pycrictl.copy.transfer.over_rpc import OverRpc
from pycrictl.cri.calls.client import CriClient
from pycrictl.errors import CopyError, NotFound, Unimplemented
from tests.fakecri import FakeServer

REFUSALS = {
    "rpc": Unimplemented("the runtime does not offer it"),
    "node": Unimplemented("run as root", hint="be root"),
    "exec": Unimplemented("there is no tar"),
}


@pytest.fixture
def methods(fake: FakeServer) -> list[Method]:
    with CriClient(fake.endpoint.removeprefix("unix://"), timeout_s=30) as client:
        node = on_node.for_client(client, "c")
        return [OverRpc(client, "c"), node, OverExec(Remote(client, "c"))]


@pytest.mark.parametrize("serves", NAMES)
def test_the_first_that_serves(
    methods: list[Method], serves: str, caplog: pytest.LogCaptureFixture
) -> None:
    def act(method: Method) -> str:
        if method.name != serves:
            raise REFUSALS[method.name]
        return f"by {method.name}"

    with caplog.at_level(logging.DEBUG, "pycrictl.copy"):
        assert first_to_serve(methods, act) == f"by {serves}"
    expected = []
    for name in NAMES[: NAMES.index(serves)]:
        reason = REFUSALS[name].message
        expected += [
            f"= trying the method {name}",
            f"= the method {name} cannot be used: {reason}",
        ]
    expected += [f"= trying the method {serves}", f"= the method {serves} is used"]
    assert [record.getMessage() for record in caplog.records] == expected


def refuse(method: Method) -> None:
    raise REFUSALS[method.name]


def test_none_serves(methods: list[Method]) -> None:
    with pytest.raises(Unimplemented) as info:
        first_to_serve(methods, refuse)
    assert info.value.message == (
        "cannot copy to or from this container (rpc: the runtime does not offer it;"
        " node: run as root; exec: there is no tar)"
    )
    with pytest.raises(Unimplemented) as info:
        first_to_serve(methods[1:2], refuse)
    assert (info.value.message, info.value.hint) == ("run as root", "be root")


@pytest.mark.parametrize("error", [CopyError("full"), NotFound("gone"), KeyboardInterrupt()])
def test_a_real_failure_is_the_end(methods: list[Method], error: BaseException) -> None:
    tried: list[str] = []

    def fail(method: Method) -> None:
        tried.append(method.name)
        raise error

    with pytest.raises(type(error)):
        first_to_serve(methods, fail)
    assert tried == ["rpc"]
