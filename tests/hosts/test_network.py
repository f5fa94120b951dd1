"""Hosts in network namespaces of their own, whose cables can be pulled out."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from tests.fakecri import FakeServer
from tests.hosts.answers import containers
from tests.hosts.shell import Shell
from tests.hosts.sshd import Hosts
from tests.support.log_replays import container_status, line
from tests.waiting import wait_until


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def apart(fresh: Hosts, fake: FakeServer) -> Iterator[Hosts]:
    """Hosts ``n1`` to ``n3``, each behind a cable of this machine."""
    fake.offer("ListContainers", containers("web"))
    try:
        for number in (1, 2, 3):
            name = link = cable(fresh, number)
            ip("netns", "add", name)
            ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
            # No other test has a link of this number.
            base = int(IPv4Address("198.18.0.0")) + 4 * (socket.if_nametoindex(link) % 32768)
            ip("addr", "add", f"{IPv4Address(base + 1)}/30", "dev", link)
            ip("link", "set", link, "up")
            ip("-n", name, "addr", "add", f"{IPv4Address(base + 2)}/30", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            enter = ("ip", "netns", "exec", name)
            fresh.add(f"n{number}", address=str(IPv4Address(base + 2)), prefix=enter)
            fresh.hosts[f"n{number}"].serve(fake.path)
        yield fresh
    finally:
        fresh.close()
        for number in range(1, len(fresh.hosts) + 1):
            ip("netns", "delete", cable(fresh, number))


def cable(hosts: Hosts, number: int) -> str:
    """Return the name of a host's namespace and of the link to it, which no test had before."""
    return f"{hosts.folder.name.replace('-', '')}{number}"


@pytest.fixture
def log(apart: Hosts, fake: FakeServer, tmp_path: Path) -> Path:
    path = tmp_path / "0.log"
    path.write_text(line("first"))
    fake.offer("ContainerStatus", container_status(str(path), lives=True))
    return path


def test_three_hosts_on_networks_of_their_own(apart: Hosts) -> None:
    done = apart.run("-H", "n[1-3]", "ps", "-q")
    assert done.stdout == "".join(f"n{number} {'1' * 64}\n" for number in (1, 2, 3))


def test_a_cable_of_one_of_several_hosts_is_pulled_out(apart: Hosts, log: Path) -> None:
    """The host ends the command first; the client notices later, and the others go on."""
    words = apart.words("-H", "n1,n2", "logs", "-f", "web")
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=apart.environ
    ) as client:
        assert client.stdout is not None
        assert client.stderr is not None
        first = {client.stdout.readline() for _ in range(2)}
        assert first == {"n1 | first\n", "n2 | first\n"}
        ip("link", "set", cable(apart, 1), "down")
        wait_until(lambda: not apart.hosts["n1"].processes())
        assert client.stderr.readline().startswith("pycrictl: n1: the connection ")
        with log.open("a") as file:
            file.write(line("second"))
        assert client.stdout.readline() == "n2 | second\n"
        client.kill()
    wait_until(lambda: not apart.hosts["n2"].processes())


def test_a_cable_is_pulled_out_while_a_command_has_the_terminal(apart: Hosts, log: Path) -> None:
    with Shell(apart.environ, apart.words("-H", "n1")) as shell:
        shell.type("$CLIENT logs -f web\n")
        shell.expect("first")
        ip("link", "set", cable(apart, 1), "down")
        wait_until(lambda: not apart.hosts["n1"].processes())
        shell.expect(r"pycrictl: n1: the connection has ended\n\$ $")
        assert shell.run("true") == "status 0\n"
