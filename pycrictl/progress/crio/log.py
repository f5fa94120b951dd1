"""What CRI-O's log says of its pulls.

At its usual level ``info`` it has the reference and the moment of each pull and that it succeeded::

    msg="Pulling image: REF" … id=…
    msg="Pulled image: IMAGE ID" … id=…

The log is a file, if CRI-O's standard error or ``--log`` is one, or the journal. Lines are in the
logfmt or the JSON of logrus.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import weakref
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

_FIRST_BYTES: Final = 1024 * 1024
_MOST_BYTES: Final = 8 * 1024 * 1024
_REMEMBERED: Final = 200

_EVENT: Final = re.compile(
    r'msg"?[=:]"(?:Pulling image: (?P<begun>[^"\\ ]+)|Pulled image: (?P<ended>[^"\\ ]+))'
)
_ID: Final = re.compile(r'\bid"?[=:]"?([0-9a-f-]{36})')
_TIME: Final = re.compile(r'\btime"?[=:]"([^"]+)"')


@dataclass(slots=True, eq=False)
class LoggedPull:
    """One PullImage call.

    Attributes:
        started_s: wall time.
        has_ended: it succeeded; a failure has no line.
        is_claimed: its directory is known.
    """

    reference: str
    started_s: float
    has_ended: bool = False
    is_claimed: bool = False


class LoggedPulls:
    def __init__(self) -> None:
        self._pulls: dict[str, LoggedPull] = {}
        self._rest = b""

    def feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if b"mage: " in line:
                self._take(line.decode("utf-8", "replace"))

    def running(self) -> list[LoggedPull]:
        return [pull for pull in self._pulls.values() if not pull.has_ended]

    def _take(self, line: str) -> None:
        event, name, time = _EVENT.search(line), _ID.search(line), _TIME.search(line)
        if event is None or name is None:
            return
        if event["begun"]:
            for key, old in list(self._pulls.items()):
                if old.reference == event["begun"] and not (old.has_ended or old.is_claimed):
                    del self._pulls[key]  # it has failed, and this is the next attempt
            with suppress(ValueError):
                at = datetime.fromisoformat(time[1]).timestamp() if time else 0.0
                self._pulls[name[1]] = LoggedPull(event["begun"], at)
                while len(self._pulls) > _REMEMBERED:
                    del self._pulls[next(iter(self._pulls))]
        elif (pull := self._pulls.get(name[1])) is not None:
            pull.has_ended = True


class CrioLog(Protocol):
    def read(self) -> bytes: ...


class CrioLogFile:
    """A log that is a file; it may be rotated or truncated."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._inode = 0
        self._offset = 0

    def read(self) -> bytes:
        """Return what is new; at first the last part of what there is."""
        with suppress(OSError), self._path.open("rb") as file:
            facts = os.fstat(file.fileno())
            if not self._inode:
                self._offset = max(facts.st_size - _FIRST_BYTES, 0)
            elif facts.st_ino != self._inode or facts.st_size < self._offset:
                self._offset = 0
            self._inode = facts.st_ino
            self._offset = max(self._offset, facts.st_size - _MOST_BYTES)
            file.seek(self._offset)
            data = file.read(_MOST_BYTES)
            self._offset += len(data)
            return data
        return b""


class Journal:
    """The journal of a process, by ``journalctl``, which runs until this object is gone."""

    def __init__(self, pid: int) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        program = shutil.which("journalctl")
        if program is None:
            return
        with suppress(OSError):
            self._process = subprocess.Popen(
                [program, "--quiet", "--follow", "--output=cat", "--lines=2000", f"_PID={pid}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            assert self._process.stdout is not None
            os.set_blocking(self._process.stdout.fileno(), False)
            weakref.finalize(self, _end, self._process)

    def read(self) -> bytes:
        if self._process is None or self._process.stdout is None:
            return b""
        found = b""
        with suppress(BlockingIOError):
            while len(found) < _MOST_BYTES:
                piece = os.read(self._process.stdout.fileno(), 65536)
                if not piece:
                    break
                found += piece
        return found


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def open_log(pid: int, root: str, named: str) -> CrioLog | None:
    if named:
        return CrioLogFile(f"{root}{named}")
    with suppress(OSError):
        target = str(Path(f"/proc/{pid}/fd/2").readlink())
        if target.startswith("socket:"):
            return Journal(pid)
        if target.startswith("/") and Path(f"{root}{target}").is_file():
            return CrioLogFile(f"{root}{target}")
    return None
