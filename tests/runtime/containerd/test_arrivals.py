"""For how long a process has received nothing, on real connections."""

from __future__ import annotations

import socket
import subprocess
import sys
import time

from pycrictl.runtime.containerd.arrivals import quiet_s
from tests.waiting import wait_until

CLIENT = """
import socket, sys
served = socket.create_server(("127.0.0.1", 0))
print(served.getsockname()[1], flush=True)
theirs, _ = served.accept()
own = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
while own.recv(100):
    print("received", flush=True)
"""


def test_only_what_arrives_on_its_own_connections_counts() -> None:
    """Bytes on a connection that another program opened to it are no download."""
    with (
        socket.create_server(("127.0.0.1", 0)) as registry,
        subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(registry.getsockname()[1])],
            stdout=subprocess.PIPE,
            text=True,
        ) as client,
    ):
        assert client.stdout is not None
        assert quiet_s(client.pid) is None
        with socket.create_connection(("127.0.0.1", int(client.stdout.readline()))) as theirs:
            own, _ = registry.accept()
            own.send(b"x")
            assert client.stdout.readline() == "received\n"
            time.sleep(0.6)
            theirs.send(b"x" * 100)
            found = quiet_s(client.pid)
            assert found is not None
            assert 0.5 < found < 60
            wait_until(lambda: own.send(b"x") and (quiet_s(client.pid) or found) < found)
            own.close()


def test_a_process_without_connections() -> None:
    assert quiet_s(2**22) is None
