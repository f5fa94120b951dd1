"""The throwaway node as a separate machine: the usual sockets, and pycrictl installed.

Programs run there in their own mount namespace, where ``/run`` is new and writes to ``/etc``,
``/usr``, ``/opt`` and ``/var/lib`` are discarded; the configuration and state of what else is
installed there are not seen. All of it ends with the lab at the latest, as
`sweep` finds it by ``/run``.
"""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

import grpc

from tests.waiting import wait_until

from .kubelet import Kubelet
from .lab import Lab

ROOT: Final = Path(__file__).resolve().parents[3]
WAIT_S: Final = 60.0

_MOUNTS: Final = """set -e
mount -t tmpfs "$FOLDER/run" /run
for place in etc usr opt var/lib; do
  mkdir -p /run/.over/$place /run/.work/$place
  mount -t overlay overlay /$place \
    -o lowerdir=/$place,upperdir=/run/.over/$place,workdir=/run/.work/$place
done
rm -rf /etc/crictl.yaml /etc/pycrictl.toml /var/lib/pycrictl /var/lib/kubelet
mkdir -p /run/containerd /etc/containerd /etc/systemd/system /etc/bash_completion.d
mkdir -p /var/lib/pycrictl /etc/pycrictl-agent
cd /etc/pycrictl-agent
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=pycrictl-agent \
  -keyout tls.key -out tls.crt 2>/dev/null
cp tls.crt ca.crt
cd - >/dev/null
ln -s "$FOLDER/ctd.sock" /run/containerd/containerd.sock
cp "$FOLDER/config.toml" /etc/containerd/config.toml
ln -sf "$FOLDER/pycrictl" /usr/local/bin/pycrictl
echo ready
read -r end || true
"""
_SETTINGS: Final = ("CONTAINER_RUNTIME_ENDPOINT", "IMAGE_SERVICE_ENDPOINT", "CRI_CONFIG_FILE")


class Machine:
    """A context manager; until it exits, command lines can run on the machine."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def __enter__(self) -> Self:
        program = self._lab.folder / "pycrictl"
        python = f"PYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)}"
        program.write_text(f'#!/bin/sh\n{python} -m pycrictl "$@"\n')
        program.chmod(0o755)
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", _MOUNTS],
            env={**os.environ, "FOLDER": str(self._lab.folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        self._holder.communicate(timeout=WAIT_S)

    def start(
        self, *words: str, folder: Path | None = None, environ: dict[str, str], **how: Any
    ) -> subprocess.Popen[str]:
        # With its root: this process may be in a chroot.
        entry = ["nsenter", f"--target={self._holder.pid}", "--mount", "--root"]
        inherited = {name: value for name, value in os.environ.items() if name not in _SETTINGS}
        return subprocess.Popen(
            [*entry, "env", "-C", str(folder or Path.cwd()), *words],
            env={**inherited, "PATH": f"/usr/local/bin:{os.environ['PATH']}", **environ},
            text=True,
            **how,
        )

    @contextmanager
    def proxy(self, limit: int) -> Iterator[Kubelet]:
        """Run a proxy meanwhile at its usual sockets, as its service does."""
        log = self._lab.folder / "proxy.log"
        words = ("--upstream", "unix:///run/containerd/containerd.sock")
        with log.open("wb") as output:
            process = self.start(
                *("pycrictl", "proxy", *words, "--max-parallel-image-pulls", str(limit)),
                environ={"STATE_DIRECTORY": "/var/lib/pycrictl"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            wait_until(lambda: " ready " in log.read_text() or process.poll() is not None, log=log)
            assert process.poll() is None, log.read_text()
            socket_path = f"/proc/{self._holder.pid}/root/run/pycrictl/cri.sock"
            options = [("grpc.default_authority", "localhost")]
            with grpc.insecure_channel(f"unix:{socket_path}", options=options) as channel:
                yield Kubelet(channel, cgroup_parent=f"/{self._lab.folder.name}")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            ended(process)


def on_terminal(
    start: Callable[..., subprocess.Popen[str]],
    typed: str = "",
    saw: Callable[[bytes], object] = lambda shown: None,
) -> tuple[int, str]:
    """Run a program on a terminal to its end; return its exit status and output.

    ``saw`` is called with the output so far whenever there is more of it.
    """
    ours, theirs = pty.openpty()
    process = start(stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.write(ours, typed.encode())
    shown = b""
    with os.fdopen(ours, "rb", buffering=0) as terminal, suppress(OSError):  # its end
        while piece := terminal.read(65536):
            shown += piece
            saw(shown)
    ended(process)
    return process.returncode, shown.decode()


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return the output of a process; if it does not end in time, kill its group."""
    try:
        return process.communicate(timeout=WAIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
