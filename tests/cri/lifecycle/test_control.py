from __future__ import annotations

import grpc
import pytest

from pycrictl.cri.calls.client import CriClient
from pycrictl.cri.lifecycle import control
from pycrictl.cri.lists.lookup import ObjectRef
from pycrictl.errors import Unavailable
from tests.fakecri import FakeServer, Status


def test_what_was_not_tried_is_told_and_not_endless(fake: FakeServer, client: CriClient) -> None:
    gone = Status(grpc.StatusCode.UNAVAILABLE, "stopping")
    fake.prepare("StopContainer", None, gone)
    ids = [ObjectRef(f"c{number}", f"c{number}") for number in range(1000)]
    with pytest.raises(Unavailable) as caught:
        list(control.in_turn(client, "StopContainer", ids))
    assert caught.value.hint is not None
    assert caught.value.hint.endswith('; not tried after this: "c2", "c3", "c4", "c5", "c6", …')
