"""A throwaway node leaves nothing behind, and what is installed for it does not start at boot.

The installation runs in its own mount namespace, where writes to ``/etc`` and ``/usr`` are
discarded, with a fake package manager that enables what it installs, as Debian's packages do.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.waiting import wait_until

from .sweep import cgroups, mount_points, processes

_BUSY_LAB = """
import os, signal, sys
from tests.node.lab import Lab
with Lab() as lab:
    lab.container(lab.node.kubelet.run_pod("left behind"))
    print(lab.folder, flush=True)
    sys.stdin.read()
"""


def shim_sockets(folder: Path) -> list[Path]:
    """Return the sockets of this node's shims; those of other nodes are in the same place."""
    addresses = [file.read_text() for file in folder.rglob("address") if file.is_file()]
    return [Path(address.removeprefix("unix://")) for address in addresses]


@pytest.mark.node
@pytest.mark.root
def test_nothing_is_left_behind_by_a_lab_that_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _BUSY_LAB],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as script:
        assert script.stdin is not None
        assert script.stdout is not None
        folder = Path(script.stdout.readline().strip())
        assert folder.name.startswith("pcn-")
        # The registry, containerd, the shim of the pod, its sandbox and its container.
        wait_until(lambda: len(processes(folder)) == 5)
        assert mount_points(folder)
        assert cgroups(folder.name)
        sockets = shim_sockets(folder)
        assert sockets
        assert all(socket.exists() for socket in sockets)
        script.kill()
        script.wait(60)
    wait_until(lambda: not folder.exists())
    assert processes(folder) == []
    assert mount_points(folder) == []
    assert cgroups(folder.name) == []
    assert not any(socket.exists() for socket in sockets)


INSTALL: Final = Path(__file__).parent / "install.sh"

_PLACE: Final = """set -e
mount -t tmpfs tmpfs /run
for place in etc usr; do
  mkdir -p /run/over/$place /run/work/$place
  mount -t overlay overlay /$place \
    -o lowerdir=/$place,upperdir=/run/over/$place,workdir=/run/work/$place
done
cd /etc
mkdir -p init.d rc2.d systemd/system/multi-user.target.wants systemd/user/default.target.wants
touch init.d/old systemd/system/old.service
cat > init.d/new <<'END'
#!/bin/sh
### BEGIN INIT INFO
# Provides:          new
# Required-Start:
# Required-Stop:
# Default-Start:     2
# Default-Stop:      0
### END INIT INFO
END
chmod +x init.d/new
ln -s ../init.d/old rc2.d/S01old
ln -s ../old.service systemd/system/multi-user.target.wants/
rm -f $(command -v containerd promtool)
cat > /usr/local/bin/apt-get <<'END'
#!/bin/sh
[ "$1" = install ] || exit 0
shift; echo "$@"
/usr/sbin/policy-rc.d; echo "policy $?"
ln -s /lib/systemd/system/new.service /etc/systemd/system/multi-user.target.wants/
ln -s /usr/lib/systemd/user/new.service /etc/systemd/user/default.target.wants/
ln -s ../init.d/new /etc/rc2.d/S01new
END
chmod +x /usr/local/bin/apt-get
rm -f /usr/sbin/policy-rc.d
PATH=/usr/local/bin:$PATH
"""


def run(words: str) -> list[str]:
    """Return the output of the installation, then what is enabled and in force after it."""
    look = "find systemd rc2.d -name '*old*' -o -name '*new*'; ls /usr/sbin/policy-rc.d || true"
    script = f"{_PLACE}\n{INSTALL} {words}\n{look}"
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "bash", "-c", script],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.node
@pytest.mark.parametrize(
    ("words", "packages"), [("node", "containerd"), ("", "containerd prometheus")]
)
def test_nothing_that_is_installed_starts_with_the_machine(words: str, packages: str) -> None:
    asked, policy, *after = run(words)
    assert asked.endswith(f" --no-install-recommends {packages}")
    assert policy == "policy 101"  # nor is it started now
    assert sorted(after) == [
        "rc2.d/K01new",
        "rc2.d/S01old",
        "systemd/system/multi-user.target.wants/old.service",
        "systemd/system/old.service",
    ]
