"""Watches the pulls in several namespaces of one containerd: those of ctr, Docker and BuildKit too.

A namespace has content, leases and snapshots of its own. Pulls outside the CRI's namespace carry
theirs in their names: ``docker.io/library/busybox:1 (moby)``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pycrictl.containerd.store import CRI_NAMESPACE
from pycrictl.errors import PycrictlError
from pycrictl.progress.content_watcher import PollResult

if TYPE_CHECKING:
    from pycrictl.progress.content_watcher import ContentWatcher, Receiver
    from pycrictl.wire.progress import Report

LIST_AGAIN_S: Final = 5.0
MAX_NAMESPACES: Final = 20


class NamespacesWatcher:
    def __init__(
        self,
        open_watcher: Callable[[str], ContentWatcher],
        list_namespaces: Callable[[], Iterable[str]],
        wanted: Collection[str] = (),
    ) -> None:
        self._open_watcher = open_watcher
        self._list_namespaces = list_namespaces
        self._wanted = wanted
        self._watchers = {name: open_watcher(name) for name in wanted or (CRI_NAMESPACE,)}
        self._list_at = 0.0

    def poll(self, tracker: Receiver, now: float) -> PollResult:
        if not self._wanted and now >= self._list_at:
            self._list_at = now + LIST_AGAIN_S
            with suppress(PycrictlError):  # without the right to list them, the CRI's is left
                for name in sorted(self._list_namespaces())[:MAX_NAMESPACES]:
                    if name not in self._watchers:
                        self._watchers[name] = self._open_watcher(name)
        found = PollResult((), ())
        for namespace, watcher in self._watchers.items():
            result = watcher.poll(_Named(tracker, namespace), now)
            active = (replace(one, image=named(one.image, namespace)) for one in result.active)
            ended = (replace(one, image=named(one.image, namespace)) for one in result.ended)
            found = PollResult((*found.active, *active), (*found.ended, *ended))
        return found


class _Named:
    def __init__(self, receiver: Receiver, namespace: str) -> None:
        self._receiver = receiver
        self._namespace = namespace

    def apply(
        self, report: Report, *, now: float, idle_s: float = 0.0, age_s: float | None = None
    ) -> None:
        report = report._replace(image=named(report.image, self._namespace))
        self._receiver.apply(report, now=now, idle_s=idle_s, age_s=age_s)

    def forget(self, image: str) -> None:
        self._receiver.forget(named(image, self._namespace))


def bare(name: str) -> str:
    return name.partition(" (")[0]


def named(image: str, namespace: str) -> str:
    """Return an image's name with its namespace, unless that is the CRI's."""
    return f"{image} ({namespace})" if image and namespace != CRI_NAMESPACE else image
