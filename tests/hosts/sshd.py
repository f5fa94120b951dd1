"""Hosts for tests: real sshds with keys and configuration of their own.

Each has its own users, homes and files of ``/etc`` in a mount namespace, so nothing of this machine
changes. They share its network, or have network namespaces of their own.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pycrictl import __version__
from tests.processes import children
from tests.waiting import WAIT_S, wait_until

ROOT = Path(__file__).resolve().parents[2]
SSHD = "/usr/sbin/sshd"

_NUMBERS = itertools.count()

_MACHINE = """\
set -e
for file in passwd group shadow sudoers; do mount --bind "$1/etc/$file" /etc/$file; done
mount -t tmpfs -o mode=755 tmpfs /run/sshd
eval "$2"
exec /usr/sbin/sshd -D -e -f "$1/sshd_config"
"""
_CONFIG = """\
Port {port}
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {keys}
PidFile none
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
StrictModes no
MaxStartups 100
Subsystem sftp internal-sftp
SetEnv {variables}
{more}
"""


@dataclass
class Host:
    """A test host.

    Attributes:
        home: of root; other users have folders beside it.
        pid: of sshd, the leader of a process group with all that runs there.
    """

    name: str
    folder: Path
    address: str
    port: int
    command: list[str] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    @property
    def home(self) -> Path:
        return self.folder / "root"

    @property
    def cache(self) -> Path:
        return self.home / ".cache/pycrictl"

    @property
    def runtime(self) -> Path:
        """Where commands there look for the runtime: a link that a test makes."""
        return self.folder / "runtime"

    def serve(self, path: str) -> None:
        """Make the runtime at a socket that of this host."""
        self.runtime.unlink(missing_ok=True)
        self.runtime.symlink_to(path)

    def start(self) -> None:
        """Start sshd, also after a crash; it answers when this returns."""
        log = self.folder / "log"
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                start_new_session=True,
            )
        wait_until(lambda: b"listening" in log.read_bytes(), log=log)

    def processes(self) -> list[int]:
        """Return the processes of its sessions."""
        pids = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"TEST_HOST={self.folder}\0".encode() in (path / "environ").read_bytes():
                    pids.append(int(path.name))
        return pids

    def crash(self) -> None:
        """Kill the sessions and the server, as if the machine had lost power."""
        assert self.process is not None
        own = self.process.pid
        for pid in (own, *descendants(own), *self.processes()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


@dataclass
class Hosts:
    """Test hosts, with the ssh configuration by which a client reaches them."""

    folder: Path
    hosts: dict[str, Host] = field(default_factory=dict)

    @property
    def environ(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder / "client"),
            "XDG_RUNTIME_DIR": str(self.folder / "run"),
            "PYCRICTL_SSH_COMMAND": f"ssh -F {self.folder}/ssh_config",
            "PYTHONPATH": str(ROOT),
            "LANG": "C.UTF-8",
        }

    @property
    def program(self) -> Path:
        """A file to send: it runs this tree, as the release's single file runs what is in it."""
        return self.folder / f"pycrictl-{__version__}-linux-{os.uname().machine}.bin"

    @property
    def address(self) -> str:
        """An address of the loopback network that no other process uses."""
        pid = os.getpid()
        return f"127.{1 + (pid >> 16)}.{pid >> 8 & 255}.{pid & 255}"

    def words(self, *words: str, program: Path | str | None = None) -> list[str]:
        """Return a command line; on a busy machine, a host may need some time for its answer."""
        own = [sys.executable, "-m", "pycrictl", f"--connect-timeout={WAIT_S}s"]
        return [*own, f"--program={self.program if program is None else program}", *words]

    def run(
        self,
        *words: str,
        stdin: str = "",
        environ: Mapping[str, str] | None = None,
        program: Path | str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.words(*words, program=program),
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            env=self.environ | dict(environ or {}),
        )

    def add(
        self,
        name: str,
        *,
        address: str = "",
        shell: str = "/bin/bash",
        config: str = "",
        variables: Mapping[str, str] | None = None,
        users: str = "",
        sudoers: str = "root ALL=(ALL:ALL) ALL\n",
        prefix: tuple[str, ...] = (),
        rc: str = "",
        setup: str = "",
    ) -> Host:
        """Start a host; it answers when this returns.

        Args:
            shell: root's.
            config: more lines of its sshd_config.
            variables: for all sessions.
            users: more lines of passwd.
            prefix: words before the command, such as those that enter a network namespace.
            rc: root's ``.bashrc``.
            setup: commands in its mount namespace, where ``$1`` is its folder.
        """
        folder = self.folder / name
        (folder / "etc").mkdir(parents=True)
        port = 22 if address else 2200 + next(_NUMBERS)
        host = Host(name, folder, address or self.address, port)
        host.home.mkdir()
        (host.home / ".bashrc").write_text(rc)
        base = Path("/etc/passwd").read_text().partition("\n")[2]
        passwd = f"root:x:0:0:root:{host.home}:{shell}\n{base}{users}"
        for file, text in (
            ("passwd", passwd),
            ("group", Path("/etc/group").read_text()),
            (
                "shadow",
                "".join(f"{line.split(':')[0]}:*:1::::::\n" for line in passwd.splitlines()),
            ),
            ("sudoers", sudoers),
        ):
            (folder / "etc" / file).write_text(text)
            (folder / "etc" / file).chmod(0o440 if file == "sudoers" else 0o644)
        _key(folder / "host_key")
        config_path = folder / "crictl.yaml"
        config_path.write_text(f"timeout: {WAIT_S:.0f}\n")
        values = {
            "TEST_HOST": str(folder),
            "CONTAINER_RUNTIME_ENDPOINT": f"unix://{host.runtime}",
            "CRI_CONFIG_FILE": str(config_path),
            **(variables or {}),
        }
        text = _CONFIG.format(
            port=host.port,
            address=host.address,
            folder=folder,
            keys=self.folder / "key.pub",
            variables=" ".join(f'"{key}={value}"' for key, value in values.items()),
            more=config,
        )
        (folder / "sshd_config").write_text(text)
        self._describe(host)
        own = ["unshare", "--mount", "sh", "-c", _MACHINE, "sh", str(folder), setup]
        host.command = [*prefix, *own]
        host.start()
        self.hosts[name] = host
        return host

    def _describe(self, host: Host) -> None:
        with (self.folder / "ssh_config").open("a") as file:
            file.write(
                f"Host {host.name}\n  HostName {host.address}\n  Port {host.port}\n  User root\n"
                f"  IdentityFile {self.folder}/key\n  IdentitiesOnly yes\n"
                f"  UserKnownHostsFile {self.folder}/known_hosts\n"
            )
        key = (host.folder / "host_key.pub").read_text().split()
        with (self.folder / "known_hosts").open("a") as file:
            name = host.address if host.port == 22 else f"[{host.address}]:{host.port}"
            file.write(f"{name} {key[0]} {key[1]}\n")

    def kept(self) -> list[int]:
        """Return the processes of control connections, which name their socket."""
        pids = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (path / "cmdline").read_text().startswith(f"ssh: {self.folder}/run/"):
                    pids.append(int(path.name))
        return pids

    def disconnect(self) -> None:
        """End the control connections that are kept."""
        for path in (self.folder / "run/pycrictl").glob("*"):
            if path.is_socket():
                words = ["ssh", "-o", f"ControlPath={path}", "-O", "exit", "any"]
                subprocess.run(words, capture_output=True, check=False)

    def close(self) -> None:
        self.disconnect()
        for host in self.hosts.values():
            if host.process is not None and host.process.poll() is None:
                host.crash()  # else sessions whose cable was pulled out would wait for ever


@contextmanager
def hosts() -> Iterator[Hosts]:
    # Not the test's own folder: control sockets need a short path.
    folder = Path(f"/tmp/pyc-{os.getpid()}-{os.urandom(2).hex()}")
    folder.mkdir(mode=0o755)
    made = Hosts(folder)
    try:
        for name in ("client", "run"):
            (folder / name).mkdir(mode=0o700)
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        _key(folder / "key")
        made.program.write_text(
            f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m pycrictl "$@"\n'
        )
        made.program.chmod(0o755)
        yield made
    finally:
        made.close()
        shutil.rmtree(folder, ignore_errors=True)


def descendants(pid: int) -> list[int]:
    own = [int(child) for child in children(pid)]
    return [*own, *(pid for child in own for pid in descendants(child))]


def _key(path: Path) -> None:
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
    subprocess.run(words, check=True)
