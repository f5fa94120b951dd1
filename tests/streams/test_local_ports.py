"""Parsing the local ports to forward, and listening on them."""

from __future__ import annotations

import socket

import pytest

from pycrictl.base.errors import ConnectError, UsageError
from pycrictl.streams.forwarder import PortPair, listen, parse_pair


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("5000", PortPair(5000, 5000)),
        ("8888:5000", PortPair(8888, 5000)),
        (":5000", PortPair(0, 5000)),
        ("0:5000", PortPair(0, 5000)),
        ("65535:1", PortPair(65535, 1)),
    ],
)
def test_ports(text: str, pair: PortPair) -> None:
    assert parse_pair(text) == pair


@pytest.mark.parametrize(
    "text", ["", ":", "abc", "1:2:3", "8080:0", "0", "65536", "65536:1", "-1", "1:", "+1", "١"]
)
def test_no_ports(text: str) -> None:
    with pytest.raises(UsageError):
        parse_pair(text)


def test_both_loopback_addresses_get_the_same_free_port() -> None:
    notes: list[str] = []
    listeners = listen(["localhost"], [PortPair(0, 80), PortPair(0, 81)], note=notes.append)
    try:
        assert [listener.remote for listener in listeners] == [80, 80, 81, 81]
        first, second = listeners[0], listeners[1]
        assert first.port == second.port > 0
        assert first.label == f"127.0.0.1:{first.port}"
        assert second.label == f"[::1]:{first.port}"
        assert notes == []
    finally:
        for listener in listeners:
            listener.socket.close()


def test_a_port_that_is_taken() -> None:
    notes: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (only,) = listen(["localhost"], [PortPair(port, 80)], note=notes.append)
        with only.socket:
            assert only.label == f"[::1]:{port}"
        assert notes == []
        with pytest.raises(ConnectError):
            listen(["127.0.0.1"], [PortPair(port, 80)], note=notes.append)
    assert notes == [f"cannot listen on port {port}: address already in use"]


def test_an_address_that_is_none() -> None:
    with pytest.raises(UsageError, match="is not an IP address"):
        listen(["node.test"], [PortPair(0, 80)], note=print)


@pytest.mark.parametrize(
    ("addresses", "hosts"),
    [
        (["127.0.0.1", "127.0.0.1"], ["127.0.0.1"]),
        (["localhost", "::1", "0:0:0:0:0:0:0:1"], ["127.0.0.1", "[::1]"]),
    ],
)
def test_an_address_is_listened_on_once(addresses: list[str], hosts: list[str]) -> None:
    notes: list[str] = []
    listeners = listen(addresses, [PortPair(0, 80)], note=notes.append)
    try:
        port = listeners[0].port
        assert [listener.label for listener in listeners] == [f"{host}:{port}" for host in hosts]
        assert notes == []
    finally:
        for listener in listeners:
            listener.socket.close()


def test_an_address_of_several_that_cannot_be_had() -> None:
    notes: list[str] = []
    (only,) = listen(["127.0.0.1", "192.0.2.1"], [PortPair(0, 80)], note=notes.append)
    with only.socket:
        reason = "cannot assign requested address"
        assert notes == [f"cannot listen on 192.0.2.1:{only.port}: {reason}"]
