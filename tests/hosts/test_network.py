"""Three hosts in network namespaces of their own, whose cables can be pulled out."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.fakecri import FakeServer
from tests.hosts.answers import containers
from tests.hosts.sshd import Hosts
from tests.waiting import wait_until


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def apart(fresh: Hosts, fake: FakeServer) -> Iterator[Hosts]:
    """Hosts ``n1`` to ``n3``, each behind a link ``pyh…`` of this machine."""
    fake.offer("ListContainers", containers("web"))
    spaces = []
    try:
        for number in (1, 2, 3):
            name, link = f"pyh-{os.getpid()}-{number}", f"pyh{os.getpid() % 10**6}{number}"
            here, there = (f"10.199.{os.getpid() % 250}.{4 * number + end}" for end in (1, 2))
            ip("netns", "add", name)
            spaces.append(name)
            ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("addr", "add", f"{here}/30", "dev", link)
            ip("link", "set", link, "up")
            for words in (
                ["addr", "add", f"{there}/30", "dev", "eth0"],
                ["link", "set", "eth0", "up"],
            ):
                ip("-n", name, *words)
            host = fresh.add(f"n{number}", address=there, prefix=("ip", "netns", "exec", name))
            host.serve(fake.path)
        yield fresh
    finally:
        fresh.close()
        for name in spaces:
            ip("netns", "delete", name)


def test_three_hosts_on_networks_of_their_own(apart: Hosts) -> None:
    done = apart.run("-H", "n[1-3]", "ps", "-q")
    assert done.stdout == "".join(f"n{number} {'1' * 64}\n" for number in (1, 2, 3))


def test_a_cable_that_is_pulled_out(apart: Hosts) -> None:
    """The host ends the command at once; the client notices later, and the others go on."""
    words = apart.words("-H", "n1,n2", "ps", "--watch")
    link = f"pyh{os.getpid() % 10**6}1"
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=apart.environ
    ) as client:
        wait_until(lambda: apart.hosts["n1"].processes() and apart.hosts["n2"].processes())
        time.sleep(2)
        ip("link", "set", link, "down")
        began_s = time.monotonic()
        wait_until(lambda: not apart.hosts["n1"].processes())
        assert time.monotonic() - began_s < 6
        assert apart.hosts["n2"].processes()
        assert client.stderr is not None
        assert client.stderr.readline().startswith("pycrictl: n1: the connection ")
        assert time.monotonic() - began_s < 30
        client.kill()
    ip("link", "set", link, "up")
