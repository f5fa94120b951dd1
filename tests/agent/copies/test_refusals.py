"""What a client is answered when a copy cannot be."""

from __future__ import annotations

import pytest

from pycrictl.agent.copies.refusals import refused
from pycrictl.errors import ConnectError, CopyError, PycrictlError


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (CopyError("no", hint="try again"), 422, "no (try again)"),
        (CopyError("no", hint="--in-place writes into it"), 422, "no"),
        (ConnectError("cannot reach the runtime", hint="name its socket with -r"), 503, "cannot "),
    ],
)
def test_no_advice_that_only_the_node_can_take(
    error: PycrictlError, code: int, message: str
) -> None:
    found = refused(error)
    assert found.code == code
    assert found.message.startswith(message)
    assert "-r" not in found.message
    assert "--in-place" not in found.message
