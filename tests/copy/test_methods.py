"""Choosing the first method that can be used."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import cast

import pytest

from pycrictl.base.errors import Unimplemented
from pycrictl.copy.methods import NAMES, Method, first_to_serve

REFUSALS = {
    "rpc": Unimplemented("the runtime does not offer it"),
    "node": Unimplemented("run as root", hint="be root"),
}


@pytest.mark.parametrize("serves", NAMES)
def test_the_first_that_serves(serves: str, caplog: pytest.LogCaptureFixture) -> None:
    def act(method: Method) -> str:
        if method.name != serves:
            raise REFUSALS[method.name]
        return f"by {method.name}"

    left = iter([cast("Method", SimpleNamespace(name=name)) for name in NAMES])
    with caplog.at_level(logging.DEBUG, "pycrictl.copy"):
        assert first_to_serve(left, act) == f"by {serves}"
    tried = NAMES.index(serves)
    assert [method.name for method in left] == [*NAMES[tried + 1 :]]
    told = []
    for name in NAMES[: tried + 1]:
        end = "is used" if name == serves else f"cannot be used: {REFUSALS[name].message}"
        told += [f"= trying the method {name}", f"= the method {name} {end}"]
    assert caplog.messages == told
