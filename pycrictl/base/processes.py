"""Processes of the node, as ``/proc`` shows them (proc(5)); unreadable values are empty."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from pycrictl.base import noderoot

_START_TIME_FIELD: Final = 22 - 3  # of /proc/PID/stat (proc(5)), counted after the program's name


def file_of(pid: int | str, name: str) -> Path:
    """Return the file of a process, or that of ``self``."""
    return Path(noderoot.locate(f"/proc/{pid}/{name}"))


def name_of(pid: int) -> str:
    """Return the name of a process, of up to 15 characters."""
    return _read(pid, "comm").rstrip("\n")


def command_line(pid: int) -> list[str]:
    """Return the words with which a process was started, its program first."""
    return _read(pid, "cmdline").rstrip("\0").split("\0")


def environ_of(pid: int) -> dict[str, str]:
    """Return the environment with which a process was started; only root sees that of others."""
    pairs = (word.partition("=") for word in _read(pid, "environ").split("\0"))
    return {name: value for name, has_value, value in pairs if has_value}


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it does not exist."""
    try:
        stat = file_of(pid, "stat").read_bytes()
    except OSError:
        return None
    # The name is in parentheses and may itself contain parentheses and spaces.
    return int(stat[stat.rfind(b")") + 2 :].split()[_START_TIME_FIELD])


def is_running(pid: int) -> bool:
    """Return whether a process is still running; a zombie is not."""
    return _read(pid, "stat").rpartition(")")[2].split()[:1] not in ([], ["Z"], ["X"])


def flags_in(words: Sequence[str]) -> dict[str, str]:
    """Return the options among words (``NAME=VALUE`` or two words), by name without dashes."""
    flags = {}
    for position, word in enumerate(words):
        name, has_value, value = word.lstrip("-").partition("=")
        if word.startswith("-"):
            flags[name] = value if has_value else "".join(words[position + 1 : position + 2])
    return flags


def _read(pid: int, name: str) -> str:
    with suppress(OSError):
        return file_of(pid, name).read_bytes().decode("utf-8", "surrogateescape")
    return ""
