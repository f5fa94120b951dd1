"""The process that pulls images with containers/image: the CRI-O behind a socket.

Which configuration it was started with is read from ``/proc``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pycrictl.containerd.daemon import listener_pid
from pycrictl.cri.calls.errmap import connect_error
from pycrictl.cri.calls.obstacle import Obstacle, try_connect
from pycrictl.errors import PycrictlError
from pycrictl.progress.crio.bigfiles import DEFAULT_BASE, root_of
from pycrictl.progress.crio.log import CrioLog, open_log
from pycrictl.progress.crio.storage import DEFAULT_ROOT

_PROC: Final = Path("/proc")
_PASSED_ON: Final = (
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    *("CONTAINERS_REGISTRIES_CONF", "REGISTRY_AUTH_FILE", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("HOME", "XDG_RUNTIME_DIR", "TMPDIR"),
)
"""Variables that decide how a registry is reached."""


@dataclass(frozen=True, slots=True)
class Downloader:
    """A process that pulls.

    Attributes:
        pid: its number; its children may pull for it.
        store: the root of its containers/storage, as it sees it.
        base: where it makes the directories of pulls, as it sees it.
        environ: the variables that decide how it reaches a registry.
        log: its log; None if that says nothing of pulls, or cannot be read.
    """

    pid: int
    store: str = DEFAULT_ROOT
    base: str = DEFAULT_BASE
    environ: dict[str, str] = field(default_factory=dict, repr=False)
    log: CrioLog | None = None


class CrioProcess:
    def __init__(self, endpoint: str, store: str, base: str = DEFAULT_BASE) -> None:
        self._endpoint = endpoint
        self._store = store
        self._base = base
        self._known: Downloader | None = None

    def look(self) -> list[Downloader]:
        """Return CRI-O's process.

        Raises:
            ConnectError: nobody listens on the socket.
            PycrictlError: its process cannot be seen from here.
        """
        if self._known is None or _program(self._known.pid) != "crio":
            pid = self._find()
            words, log = _words(pid), None
            environ = _environ(pid)
            if config := _value(words, "--registries-conf"):
                environ["CONTAINERS_REGISTRIES_CONF"] = config
            if auth := _value(words, "--global-auth-file"):
                environ["REGISTRY_AUTH_FILE"] = auth
            with suppress(PermissionError):
                log = open_log(pid, root_of(pid), _value(words, "--log"))
            self._known = Downloader(pid, self._store, self._base, environ, log=log)
        return [self._known]

    def _find(self) -> int:
        pid = listener_pid(f"unix://{self._endpoint}")
        if pid and _program(pid) == "crio":
            return pid
        if pid:  # a proxy in front of it, perhaps ours
            found = [other for other in _pids() if _program(other) == "crio"]
            if len(found) == 1:
                return found[0]
        elif isinstance(obstacle := try_connect(self._endpoint, 1.0), Obstacle):
            raise connect_error(obstacle, f"unix://{self._endpoint}")
        else:  # in another PID namespace, where it has no number for us
            obstacle.close()
        raise PycrictlError(
            "the process of CRI-O cannot be seen from here, and only its files show its pulls",
            hint="run on the node itself, not in another PID namespace, or ask pycrictl proxy",
        )


def children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  # pathlib takes longer
            with suppress(OSError):
                text = (_PROC / str(pid) / "task" / task / "children").read_text()
                found += map(int, text.split())
    return found


def unpacker_read_bytes(pid: int) -> int | None:
    """Return how much of a tar archive the unpacker of containers/storage has read.

    That is a child of its own for each layer, ``storage-untar``, whose standard input is the
    unpacked archive (``/proc/PID/io``, proc(5)).

    Returns:
        None unless exactly one is at work.
    """
    found = [child for child in children(pid) if _words(child)[:1] == ["storage-untar"]]
    if len(found) == 1:
        with suppress(OSError, ValueError):
            first, _, _ = (_PROC / str(found[0]) / "io").read_text().partition("\n")
            return int(first.removeprefix("rchar:"))
    return None


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208  # as above


def _program(pid: int) -> str:
    with suppress(OSError):
        return (_PROC / str(pid) / "comm").read_text("utf-8", "replace").rstrip("\n")
    return ""


def _words(pid: int) -> list[str]:
    return _strings(pid, "cmdline")


def _strings(pid: int, name: str) -> list[str]:
    with suppress(OSError):
        text = (_PROC / str(pid) / name).read_bytes().decode("utf-8", "surrogateescape")
        return text.rstrip("\0").split("\0") if text else []
    return []


def _environ(pid: int) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in _strings(pid, "environ"))
    return {name: value for name, _, value in pairs if name in _PASSED_ON}


def _value(words: Sequence[str], option: str) -> str:
    """Return the value of an option of a process, given with ``=`` or as the next word."""
    for place, word in enumerate(words):
        name, has_value, value = word.partition("=")
        if name == option:
            return value if has_value else "".join(words[place + 1 : place + 2])
    return ""
