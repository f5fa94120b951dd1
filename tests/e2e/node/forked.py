"""The real program, run many times without the cost of its start.

A process imports the program once and then forks for every run: each run is a separate process,
with its own standard streams, that exits as the installed command does.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

TIMEOUT_S = 60


class Ended(NamedTuple):
    """The result of one run; ``status`` is negative after a signal, such as the time limit's."""

    status: int
    stdout: bytes
    stderr: str


class Program:
    """Runs ``pycrictl`` with ``words`` before those of each run, which may last ``limit_s``."""

    def __init__(self, *words: str, limit_s: int = TIMEOUT_S) -> None:
        self._words = words
        self._limit_s = limit_s
        self._folder = tempfile.TemporaryDirectory(prefix="pct-", dir="/var/tmp")
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.node.forked", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.wait()
        self._folder.cleanup()

    def run(self, *words: str | Path, stdin: bytes = b"") -> Ended:
        path = Path(self._folder.name, "stdin")
        path.write_bytes(stdin)
        self.start(*words, stdin=path)
        return self.end()

    def start(self, *words: str | Path, stdin: Path) -> int:
        """Start a run and return its process ID; ``end`` must follow."""
        request = {
            "words": [*self._words, *map(str, words)],
            "stdin": str(stdin),
            "stdout": f"{self._folder.name}/stdout",
            "stderr": f"{self._folder.name}/stderr",
            "limit_s": self._limit_s,
        }
        self._socket.send(json.dumps(request).encode())
        return int(self._socket.recv(1000))

    def end(self) -> Ended:
        status = int(self._socket.recv(1000))
        folder = Path(self._folder.name)
        stderr = (folder / "stderr").read_bytes().decode("utf-8", "surrogateescape")
        return Ended(status, (folder / "stdout").read_bytes(), stderr)


def _serve(requests: socket.socket) -> None:
    # What most runs import.
    import pycrictl.__main__
    import pycrictl.cli.application
    import pycrictl.cli.commands.cp
    import pycrictl.cli.list_options
    import pycrictl.cli.main
    import pycrictl.copy.on_node
    import pycrictl.copy.transfer.over_rpc
    import pycrictl.runtime.cri.calls.client
    import pycrictl.show.render  # noqa: F401 (loaded before forking)

    while request := requests.recv(100_000):
        pid = os.fork()
        if not pid:
            _run(json.loads(request))
        requests.send(b"%d" % pid)
        _, status = os.waitpid(pid, 0)
        requests.send(b"%d" % os.waitstatus_to_exitcode(status))


def _run(request: dict[str, Any]) -> None:
    from pycrictl.__main__ import run

    words: Sequence[str] = request["words"]
    try:
        for number, (name, flags) in enumerate(
            (
                ("stdin", os.O_RDONLY),
                ("stdout", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
                ("stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
            )
        ):
            fd = os.open(request[name], flags)
            os.dup2(fd, number)
            os.close(fd)
        sys.argv = ["pycrictl", *words]
        faulthandler.dump_traceback_later(request["limit_s"] - 1)  # shows where it hangs
        signal.alarm(request["limit_s"])
        run()
    finally:
        os._exit(99)  # the program should have ended by itself


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
