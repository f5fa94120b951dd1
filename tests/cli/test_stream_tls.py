"""Streams over TLS, with the options of the commands that stream."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pycrictl._proto import cri_pb2
from tests.cli.run import Run
from tests.cli.streaming_server import Played, playing
from tests.fakecri import FakeServer
from tests.streams.servers import Certificates, in_thread, make_certificates, read_head

ENDING = ("exec c id", "exec -r spdy c id", "exec -i c id", "attach c")
COMMANDS = (*ENDING, "port-forward --address 127.0.0.1 p :80")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("others"))


@contextmanager
def runtime(
    fake: FakeServer, certificates: Certificates, *, wants_client_cert: bool = False
) -> Iterator[None]:
    """Serve streams over TLS."""
    context = certificates.server_context(wants_client_cert=wants_client_cert)

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)

    with (
        playing(fake, Played(b"over TLS\n"), context=context),
        in_thread(forward, context=context) as address,
    ):
        url = f"https://{address}/portforward/secret"
        fake.offer("PortForward", cri_pb2.PortForwardResponse(url=url))
        yield


def run(fake: FakeServer, line: str, *options: str) -> Run:
    command, *words = line.split()
    return Run("-t", "30s", "-r", fake.endpoint, command, *options, *words)


def assert_served(done: Run) -> None:
    assert (done.code, done.stdout, done.stderr) == (0, "over TLS\n", "")


def assert_one_line(done: Run, reason: str) -> None:
    assert (done.code, done.stdout) == (1, "")
    first, *hints = done.stderr.splitlines()
    assert first.startswith("pycrictl: ")
    assert reason in first
    assert all(line.startswith("hint: ") for line in hints)
    assert "secret" not in done.stderr


@pytest.mark.parametrize("line", ENDING)
def test_with_everything(fake: FakeServer, certificates: Certificates, line: str) -> None:
    options = [
        "--tls-ca", certificates.ca,
        "--tls-cert", certificates.cert("client"), "--tls-key", certificates.key("client"),
        "--tls-sni", "node.test",
    ]  # fmt: skip
    with runtime(fake, certificates, wants_client_cert=True):
        assert_served(run(fake, line, *options))


@pytest.mark.parametrize("line", COMMANDS)
def test_servers_that_are_not_trusted(
    fake: FakeServer, certificates: Certificates, others: Certificates, line: str
) -> None:
    for options, reason in (
        (["--tls-ca", others.ca, "--tls-sni", "node.test"], "certificate"),
        (["--tls-ca", certificates.ca], "localhost"),  # crictl's default name
    ):
        with runtime(fake, certificates):
            assert_one_line(run(fake, line, *options), reason)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_file_that_cannot_be_used_is_reported_before_anything_is_sent(
    fake: FakeServer, line: str
) -> None:
    assert_one_line(run(fake, line, "--tls-ca", "/nonexistent.pem"), '"/nonexistent.pem"')
    assert not fake.calls


@pytest.mark.parametrize("line", ENDING)
def test_a_stream_without_tls_is_refused(
    fake: FakeServer, certificates: Certificates, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = ["--tls-cert", certificates.cert("client"), "--tls-key", certificates.key("client")]
    with playing(fake, Played(b"out\n")):
        assert_one_line(run(fake, line, "--tls-ca", certificates.ca), "is not encrypted")
        monkeypatch.setattr(sys, "argv", ["crictl"])
        done = run(fake, line, *client)
        assert (done.code, done.stdout) == (0, "out\n")


@pytest.mark.parametrize("line", ["exec c id", "exec -s c id", "attach c", "port-forward p :80"])
@pytest.mark.parametrize("option", ["--tls-ca", "--tls-cert", "--tls-key"])
def test_as_crictl_a_certificate_and_its_key_are_required(
    fake: FakeServer, line: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["crictl"])
    monkeypatch.setenv("CRI_CONFIG_FILE", "/dev/null")
    done = run(fake, line, option, "/nonexistent.pem")
    assert (done.code, done.stdout, fake.calls) == (1, "", [])
    assert "are required for streams over TLS" in done.stderr
