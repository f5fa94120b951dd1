"""Notifications of systemd: states, keep-alives."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import TextIO


def notify(state: str, environ: Mapping[str, str]) -> bool:
    """Report a state to systemd, such as ``READY=1`` or ``STOPPING=1`` (sd_notify(3))."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(state.encode(), address)
    except OSError:
        return False
    return True


def watchdog_s(environ: Mapping[str, str]) -> float | None:
    """Return within which time systemd wants a keep-alive (sd_watchdog_enabled(3))."""
    text = environ.get("WATCHDOG_USEC", "")
    if not text.isdigit() or environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(text) / 1e6 or None


def is_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Return whether a stream goes to the journal, which takes priorities (sd-daemon(3))."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environ.get("JOURNAL_STREAM", "") == f"{found.st_dev}:{found.st_ino}"
