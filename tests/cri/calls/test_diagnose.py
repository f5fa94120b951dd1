from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from pycrictl.cri.calls.diagnose import Finding, Obstacle, diagnose, try_connect
from tests.fakecri import FakeServer, hostile


def obstacle(path: str, timeout_s: float = 0.2) -> Obstacle:
    found = try_connect(path, timeout_s)
    assert isinstance(found, Obstacle)
    assert found.hint
    return found


class TestTryConnect:
    def test_a_listener(self) -> None:
        with hostile.hung() as path:
            connection = try_connect(path, 1)
            assert isinstance(connection, socket.socket)
            connection.close()

    def test_missing(self, folder: Path) -> None:
        assert obstacle(str(folder / "none")).reason == "no such file"
        assert obstacle(str(folder / "none")).may_pass
        assert obstacle(str(folder / "no" / "where")).may_pass

    def test_dead(self) -> None:
        with hostile.dead() as path:
            found = obstacle(path)
        assert found.reason == "connection refused: nothing listens there"
        assert found.may_pass

    def test_a_file(self, folder: Path) -> None:
        (folder / "plain").touch()
        found = obstacle(str(folder / "plain"))
        assert found.reason == "it is a file, not a socket"
        assert not found.may_pass
        assert obstacle(str(folder)).reason == "it is a directory, not a socket"
        assert obstacle(str(folder / "plain" / "below")).reason == "Not a directory"

    def test_a_datagram_socket(self, folder: Path) -> None:
        path = str(folder / "datagram")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
            other.bind(path)
            assert obstacle(path).reason == "it is a socket of another type"

    def test_a_path_too_long(self, folder: Path) -> None:
        found = obstacle(str(folder / ("x" * 107)))
        assert found.reason.startswith("the path is longer than the 107 bytes")
        assert not found.may_pass

    def test_a_full_queue(self) -> None:
        with hostile.unaccepted(backlog=0) as path, ExitStack() as stack:
            waiting = try_connect(path, 0.2)
            assert isinstance(waiting, socket.socket)
            stack.enter_context(waiting)
            started = time.monotonic()
            assert obstacle(path).reason == "its queue of connections is full"
            assert 0.15 < time.monotonic() - started < 60

    def test_permission_denied(self) -> None:
        with hostile.forbidden() as path:
            found = obstacle(path)
        assert found.reason == "permission denied"
        assert not found.may_pass


class TestDiagnose:
    def test_a_runtime(self, fake: FakeServer) -> None:
        assert diagnose(fake.path, 30).finding is Finding.ALIVE

    def test_missing(self, folder: Path) -> None:
        found = diagnose(str(folder / "none"), 1)
        assert (found.finding, found.reason) == (Finding.UNREACHABLE, "no such file")

    @pytest.mark.parametrize("kind", [hostile.hung, hostile.unaccepted])
    def test_silent(self, kind: type) -> None:
        started = time.monotonic()
        with kind() as path:
            found = diagnose(path, 0.2)
        assert found.finding is Finding.SILENT
        assert found.reason == "it accepts connections but does not answer"
        assert 0.15 < time.monotonic() - started < 60

    @pytest.mark.parametrize("kind", [hostile.closing, hostile.resetting])
    def test_closing(self, kind: type) -> None:
        with kind() as path:
            found = diagnose(path, 30)
        assert found.finding is Finding.CLOSES

    def test_a_web_server(self) -> None:
        with hostile.http1() as path:
            found = diagnose(path, 30)
        assert found.finding is Finding.FOREIGN
        assert found.reason == 'it is no gRPC server: it answers "HTTP/1.1 400 Bad Request"'

    @pytest.mark.parametrize(
        ("data", "shown"),
        [
            (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH-2.0-OpenSSH_9.2"),
            (b"\x1b[2J\xff\xfe" + b"y" * 5000, r"\x1b[2J��yyyy"),
            (b"?", "?"),
            (b"\n", ""),
            # An acknowledgement, and a PING, are no beginning of HTTP/2.
            (b"\x00\x00\x00\x04\x01\x00\x00\x00\x00", r"\x00\x00\x00\x04\x01"),
            (b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + b"12345678", r"\x00\x00\x08\x06\x00"),
        ],
    )
    def test_other_servers(self, data: bytes, shown: str) -> None:
        with hostile.answering(data) as path:
            found = diagnose(path, 30)
        assert found.finding is Finding.FOREIGN
        assert f'"{shown}' in found.reason
        assert found.reason.isprintable()
        assert len(found.reason) < 350

    def test_an_answer_that_stops_early(self) -> None:
        with hostile.answering(hostile.HTTP2_SETTINGS[:5]) as path:
            assert diagnose(path, 0.2).finding is Finding.SILENT

    def test_settings_with_content(self) -> None:
        settings = b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64"
        with hostile.answering(settings) as path:
            assert diagnose(path, 30).finding is Finding.ALIVE
