from __future__ import annotations

import grpc
import pytest

from pycrictl.cri.calls.client import CriClient
from pycrictl.cri.lifecycle import control
from pycrictl.cri.lists.lookup import ObjectRef
from pycrictl.errors import NotFound
from tests.fakecri import FakeServer, Status

MISSING = Status(grpc.StatusCode.NOT_FOUND, "gone")


def test_what_was_not_tried_is_told_and_not_endless(fake: FakeServer, client: CriClient) -> None:
    fake.prepare("StopContainer", MISSING)
    ids = [ObjectRef(f"c{number}", f"c{number}") for number in range(1000)]
    with pytest.raises(NotFound) as caught:
        list(control.in_turn(client, "StopContainer", ids))
    assert caught.value.hint == 'not tried after this: "c1", "c2", "c3", "c4", "c5", …'
    fake.prepare("StopContainer", MISSING)
    with pytest.raises(NotFound) as caught:
        list(control.in_turn(client, "StopContainer", ids[-1:]))
    assert caught.value.hint is None
