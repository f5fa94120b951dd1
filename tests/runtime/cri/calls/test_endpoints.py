from __future__ import annotations

import logging
import socket
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Literal

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.base import errors
from pycrictl.base.config import Config, Flags, load
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.calls.endpoints import open_client, retry_pauses
from tests.fakecri import FakeServer, Status, hostile, serve

LIST = cri_pb2.ListImagesRequest()
VERSION = cri_pb2.VersionResponse(runtime_name="fake", runtime_version="1")


def settings(
    endpoint: str | None = None,
    *,
    images: str | None = None,
    retries: int = 0,
    timeout_s: float = 5,
) -> Config:
    flags = Flags(
        runtime_endpoint=endpoint,
        image_endpoint=images,
        max_retries=retries,
        timeout_s=timeout_s,
    )
    return load(flags, {}, default_path="/nonexistent")


def refused(
    config: Config, service: Literal["runtime", "image"] = "runtime"
) -> errors.PycrictlError:
    with pytest.raises(errors.PycrictlError) as caught:
        open_client(config, service)
    assert caught.value.message.isprintable()
    return caught.value


class TestConfiguredEndpoint:
    def test_nothing_is_sent_to_validate_it(self, fake: FakeServer) -> None:
        fake.prepare("ListImages", cri_pb2.ListImagesResponse())
        with open_client(settings(fake.endpoint)) as client:
            assert client.endpoint == fake.endpoint
            assert client.timeout_s == 5
            client.call("ListImages", LIST)
        assert fake.methods() == ["ListImages"]

    @pytest.mark.parametrize("name", ["a b", "p%41q", "é", "h#x", "q?x", "50%", "\udcff"])
    def test_odd_paths(self, fake: FakeServer, folder: Path, name: str) -> None:
        link = folder / name
        link.symlink_to(fake.path)
        fake.prepare("ListImages", cri_pb2.ListImagesResponse())
        with open_client(settings(f"unix://{link}")) as client:
            client.call("ListImages", LIST)

    def test_each_service_has_its_own(self, fake: FakeServer) -> None:
        config = settings("/nonexistent.sock", images=fake.path)
        fake.prepare("ListImages", cri_pb2.ListImagesResponse())
        with open_client(config, "image") as client:
            client.call("ListImages", LIST)
        assert refused(config).message == (
            'cannot reach the runtime at "unix:///nonexistent.sock": no such file'
        )

    def test_other_schemes_and_none(self) -> None:
        assert isinstance(refused(settings("tcp://127.0.0.1:1")), errors.UsageError)
        assert refused(settings("")).message == "--runtime-endpoint is not set"
        assert refused(settings("", images=""), "image").message == "--image-endpoint is not set"

    def test_an_empty_image_endpoint_is_that_of_the_runtime(self, fake: FakeServer) -> None:
        with open_client(settings(fake.path, images=""), "image") as client:
            assert client.endpoint == fake.endpoint


class TestRetries:
    def test_pauses(self) -> None:
        assert list(retry_pauses(0)) == []
        assert list(retry_pauses(3)) == [0.5, 1, 2]
        assert list(retry_pauses(7)) == [0.5, 1, 2, 4, 5, 5, 5]
        assert list(islice(retry_pauses(-1), 100))[-1] == 5

    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("plain", "it is not a socket"),
            ("folder", "it is not a socket"),
            ("none", "no such file"),
            ("plain/s", "Not a directory"),
        ],
    )
    def test_what_is_no_socket_is_not_tried_again(
        self, folder: Path, caplog: pytest.LogCaptureFixture, name: str, reason: str
    ) -> None:
        caplog.set_level(logging.DEBUG, "pycrictl.cri")
        (folder / "plain").touch()
        (folder / "folder").mkdir()
        error = refused(settings(str(folder / name), retries=-1))
        assert error.message.endswith(f": {reason}")
        assert not caplog.records

    def test_a_runtime_that_listens_after_a_second(self, folder: Path) -> None:
        path = str(folder / "late")
        done = threading.Event()
        notes: list[str] = []
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)

        def start_late() -> None:
            time.sleep(1)
            Path(path).unlink()
            with serve(path) as server:
                server.prepare("ListImages", cri_pb2.ListImagesResponse())
                done.wait(60)

        runtime = threading.Thread(target=start_late)
        runtime.start()
        try:
            with open_client(settings(path, retries=-1), note=notes.append) as client:
                assert client.call("ListImages", LIST) == cri_pb2.ListImagesResponse()
        finally:
            done.set()
            runtime.join()
        (note,) = notes
        assert note.endswith(": connection refused: nothing listens there; trying again")


class TestDiscovery:
    def find(self, *endpoints: str, timeout_s: float = 5) -> CriClient:
        return open_client(settings(timeout_s=timeout_s), endpoints=endpoints)

    def test_the_first_that_answers(self, fake: FakeServer, folder: Path) -> None:
        fake.prepare("Version", VERSION)
        with serve() as other, hostile.http1() as web, hostile.dead() as dead:
            with self.find(f"unix://{folder}/none", dead, web, fake.endpoint, other.path) as client:
                assert client.endpoint == fake.endpoint
                assert client.runtime == "fake 1"
            assert not other.calls

    def test_a_hung_one_is_passed_by(self, fake: FakeServer) -> None:
        fake.prepare("Version", VERSION)
        with hostile.hung() as path, self.find(path, fake.path, timeout_s=0.8) as client:
            assert client.endpoint == fake.endpoint
        deadline_s = fake.calls[0].deadline_s
        assert deadline_s is not None
        assert deadline_s < 0.9  # not the timeout of other calls

    def test_none_answers(self, fake: FakeServer, folder: Path) -> None:
        details = "unknown service runtime.v1.RuntimeService"
        fake.prepare("Version", Status(grpc.StatusCode.UNIMPLEMENTED, details))
        with hostile.http1() as web, pytest.raises(errors.ConnectError) as caught:
            self.find(f"unix://{folder}/none", fake.endpoint, f"unix://{web}")
        assert caught.value.message == (
            f"no container runtime answers: {fake.endpoint} (does not serve the CRI (runtime.v1)),"
            f' unix://{web} (it is not a gRPC server: it answers "HTTP/1.1 400 Bad Request"),'
            f" no such file: unix://{folder}/none"
        )
        assert caught.value.hint is not None
        assert "CRI" in caught.value.hint
