"""The process that pulls images with containers/image: the CRI-O behind a socket."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pycrictl.containerd.daemon import listener_pid
from pycrictl.cri.calls.errmap import connect_error
from pycrictl.cri.calls.obstacle import Obstacle, try_connect
from pycrictl.errors import PycrictlError

_PASSED_ON: Final = (
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    *("CONTAINERS_REGISTRIES_CONF", "REGISTRY_AUTH_FILE", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("HOME", "XDG_RUNTIME_DIR", "TMPDIR"),
)
"""Variables that decide how a registry is reached."""


@dataclass(frozen=True, slots=True)
class Downloader:
    """A process that pulls: its root of containers/storage, and how it reaches registries."""

    pid: int
    store: str
    environ: dict[str, str] = field(default_factory=dict, repr=False)


class CrioProcess:
    def __init__(self, endpoint: str, store: str) -> None:
        self._endpoint = endpoint
        self._store = store
        self._known: Downloader | None = None

    def look(self) -> Downloader:
        if self._known is None or _program(self._known.pid) != "crio":
            pid = self._find()
            self._known = Downloader(pid, self._store, _environ(pid))
        return self._known

    def _find(self) -> int:
        pid = listener_pid(f"unix://{self._endpoint}")
        if pid and _program(pid) == "crio":
            return pid
        if pid:  # a proxy in front of it, perhaps ours
            pids = (int(name) for name in os.listdir("/proc") if name.isdecimal())  # noqa: PTH208  # names
            found = [other for other in pids if _program(other) == "crio"]
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
        for text in Path(f"/proc/{pid}/task").glob("*/children"):
            found += map(int, text.read_text().split())
    return found


def _program(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").rstrip("\n")
    return ""


def _environ(pid: int) -> dict[str, str]:
    text = b""
    with suppress(OSError):
        text = Path(f"/proc/{pid}/environ").read_bytes()
    pairs = (entry.partition("=") for entry in text.decode("utf-8", "surrogateescape").split("\0"))
    return {name: value for name, _, value in pairs if name in _PASSED_ON}
