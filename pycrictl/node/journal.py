"""Recent lines of the node's services from the systemd journal, up to a limit.

``journalctl -o json`` is run with a time limit; a node without it yields no lines.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pycrictl.base import foreign

UNITS: Final = (
    "kubelet", "containerd", "crio", "docker",
    "k3s", "k3s-agent", "rke2-server", "rke2-agent", "k0scontroller", "k0sworker",
    "snap.microk8s.daemon-kubelite", "snap.microk8s.daemon-containerd",
)  # fmt: skip
"""The services that pull or request images, under their names in various distributions."""

MAX_LINES: Final = 2000
HISTORY_S: Final = 3600.0
"""How far back logs are read, and pull attempts are counted."""

_JOURNALS: Final = ("var/log/journal", "run/log/journal")


class JournalLine(NamedTuple):
    """One message, with its wall time and the service without ``.service``."""

    at_s: float
    unit: str
    message: str


def read(
    since_s: float,
    *,
    units: Sequence[str] = UNITS,
    root: Path = Path("/"),
    timeout_s: float = 1.0,
) -> list[JournalLine]:
    """Return the lines since a time; if the journal is slow, those read within ``timeout_s``."""
    command = [
        "journalctl", "--quiet", "--no-pager", "--output=json", f"--since=@{since_s:.0f}",
        "--output-fields=MESSAGE,_SYSTEMD_UNIT,SYSLOG_IDENTIFIER", f"--lines={MAX_LINES}",
        *(f"--unit={unit}" for unit in units),
    ]  # fmt: skip
    if root != Path("/"):
        present = [root / path for path in _JOURNALS if (root / path).is_dir()]
        command += [f"--directory={folder}" for folder in present[:1]]
    return list(parse(_output(command, timeout_s)))


def parse(lines: Iterable[bytes]) -> Iterator[JournalLine]:
    """Read journalctl's JSON; a message that is not UTF-8 is an array of bytes."""
    for line in lines:
        try:
            fields = foreign.mapping(foreign.parse(line))
            at_s = int(fields["__REALTIME_TIMESTAMP"]) / 1e6
            message = fields["MESSAGE"]
            if isinstance(message, list):
                message = bytes(message).decode("utf-8", "replace")
            unit = fields.get("_SYSTEMD_UNIT") or fields.get("SYSLOG_IDENTIFIER") or ""
        except (ValueError, KeyError, TypeError):
            continue
        if isinstance(message, str) and isinstance(unit, str):
            yield JournalLine(at_s, unit.removesuffix(".service"), message)


def _output(command: Sequence[str], timeout_s: float) -> list[bytes]:
    environ = {**os.environ, "LC_ALL": "C"}
    try:
        content = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environ,
            timeout=timeout_s,
            check=False,
        ).stdout
    except subprocess.TimeoutExpired as exc:
        content = exc.stdout or b""
    except OSError:
        return []
    return content.split(b"\n")[:-1]
