from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from pathlib import Path

from pycrictl.cri.calls.obstacle import Obstacle, try_connect
from tests.fakecri import hostile


def obstacle(path: str, timeout_s: float = 0.2) -> Obstacle:
    found = try_connect(path, timeout_s)
    assert isinstance(found, Obstacle)
    assert found.hint
    return found


class TestTryConnect:
    def test_a_datagram_socket(self, folder: Path) -> None:
        path = str(folder / "datagram")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
            other.bind(path)
            assert obstacle(path).reason == "it is a socket of another type"

    def test_a_path_too_long(self, folder: Path) -> None:
        found = obstacle(str(folder / ("x" * 107)))
        assert found.reason.startswith("AF_UNIX path too long")
        assert not found.may_pass

    def test_a_full_queue(self) -> None:
        with hostile.unaccepted(backlog=0) as path, ExitStack() as stack:
            waiting = try_connect(path, 0.2)
            assert not isinstance(waiting, Obstacle)
            stack.callback(waiting.close)
            started = time.monotonic()
            assert obstacle(path).reason == "its queue of connections is full"
            assert 0.15 < time.monotonic() - started < 60

    def test_permission_denied(self) -> None:
        with hostile.forbidden() as path:
            found = obstacle(path)
        assert found.reason == "permission denied"
        assert not found.may_pass
