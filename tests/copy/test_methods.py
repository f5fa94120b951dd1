"""Choosing the first method that can be used."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import cast

import pytest

from pycrictl.base.errors import Unimplemented
from pycrictl.copy.methods import NAMES, Method, first_to_serve


def test_the_first_that_serves(caplog: pytest.LogCaptureFixture) -> None:
    def act(method: Method) -> str:
        if method.name == "rpc":
            raise Unimplemented("the runtime does not offer it")
        return f"by {method.name}"

    left = iter([cast("Method", SimpleNamespace(name=name)) for name in (*NAMES, "another")])
    with caplog.at_level(logging.DEBUG, "pycrictl.copy"):
        assert first_to_serve(left, act) == "by node"
    assert [method.name for method in left] == ["another"]
    assert caplog.messages == [
        "= trying the method rpc",
        "= the method rpc cannot be used: the runtime does not offer it",
        "= trying the method node",
        "= the method node is used",
    ]
