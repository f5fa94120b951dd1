"""Collects what is known of a node; a source that fails is named, and the others are asked."""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pycrictl import noderoot
from pycrictl._proto import cri_pb2
from pycrictl.containerd.client import ContainerdClient
from pycrictl.containerd.daemon import find_daemon
from pycrictl.containerd.mirrors import sites_of
from pycrictl.containerd.settings import config_path, pull_settings
from pycrictl.cri.calls.discovery import others
from pycrictl.cri.lists import fetch
from pycrictl.diagnosis.asking import Asking, unmet
from pycrictl.diagnosis.filesystems import disks_of
from pycrictl.diagnosis.findings import Missing
from pycrictl.diagnosis.node import NodeFacts
from pycrictl.diagnosis.registry import Route, try_route
from pycrictl.errors import ConfigError
from pycrictl.kube.kubelet import configuration, find_kubelet
from pycrictl.kube.kubelet_config import find_kubelet_config, read_kubelet_config
from pycrictl.progress.leases import EXPIRY_LABEL, LeaseBook, created_at
from pycrictl.progress.reference import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pycrictl.cri.calls.client import CriClient

STALE_S: Final = 3600.0
MOST_REGISTRIES: Final = 4

_AT_ONCE: Final = 4
_START_S: Final = 0.1
"""A containerd takes longer than that to begin; one that is killed may have written just before."""

_STAGE: Final = re.compile(r"\.pycrictl-[0-9a-f]{16}")
_LOOK_S: Final = 1.0
_DEPTH: Final = 3
_TIME_ERROR: Final = 5
_TIMEX_BYTES: Final = 512


class NodeCollector(Asking):
    """Collects facts about a node, source by source.

    Args:
        registries: HOST or HOST/REPO of the registries to try; empty for those of the images.
    """

    def __init__(self, registries: Iterable[str] = ()) -> None:
        super().__init__()
        self._registries = list(registries)
        self._known: dict[str, Any] = {}
        self._config = config_path(None)

    def facts(self) -> NodeFacts:
        """Return what was collected so far."""
        return NodeFacts(**self._known, missing=tuple(self._missing))

    def no_runtime(self, problem: str) -> None:
        """Note that no runtime answers."""
        self._known["problem"] = problem

    def ask_runtime(self, client: CriClient, images: CriClient) -> None:
        """Ask the runtime, and containerd's own API if it is containerd."""
        known = self._known
        known["endpoint"] = client.endpoint
        info: dict[str, str] = {}
        with self._optional("runtime version"):
            answer = client.call("Version", cri_pb2.VersionRequest())
            known["runtime"] = f"{answer.runtime_name} {answer.runtime_version}"
        with self._optional("other sockets"):
            known["other_sockets"] = tuple(others(client.path))
        with self._optional("runtime status"):
            status = client.call("Status", cri_pb2.StatusRequest(verbose=True))
            info = dict(status.info)
            known["conditions"] = unmet(status.status)
        with self._optional("disks"):
            known["disks"] = tuple(disks_of(images))
            known["stages"] = tuple(_stages(images))
        with self._optional("containerd's own API"):
            self._ask_containerd(ContainerdClient(client.path, timeout_s=2.0), info)
        if not self._registries:
            with self._optional("images"):
                self._registries = _registries_of(fetch.images(images))

    def look_at_host(self, root: Path) -> None:
        """Read the clock's state and the kubelet's configuration."""
        self._known["is_clock_synchronized"] = _is_synchronized()
        kubelet = find_kubelet(root)
        path = find_kubelet_config([kubelet.pid] if kubelet.pid else (), root=root)
        settings = configuration(kubelet, root)
        try:
            pulls = read_kubelet_config(path)
            self._known["kubelet_config"] = pulls.path
            self._known["kubelet_limit"] = pulls.own_limit
        except ConfigError as exc:
            self._missing.append(Missing("kubelet's configuration", exc.message))
        runtime = kubelet.runtime_endpoint or settings.get("containerRuntimeEndpoint") or ""
        images = kubelet.image_endpoint or settings.get("imageServiceEndpoint") or runtime
        self._known["kubelet_endpoints"] = (str(runtime), str(images))
        if runtime and (used := self._known.get("endpoint")):
            socket = Path(noderoot.locate(str(runtime).removeprefix("unix://")))
            with self._optional("the kubelet's runtime"):
                self._known["is_kubelets"] = socket.samefile(used.removeprefix("unix://"))

    def ask_proxy(
        self, listen: str, upstream: str, status: Callable[[], Mapping[str, Any]]
    ) -> None:
        """Note a proxy that runs on the node, and ask it for its limit."""
        self._known |= {"proxy": listen, "proxy_upstream": upstream}
        with self._optional("proxy"):
            self._known["proxy_limit"] = status()["limit"]

    def try_registries(self) -> None:
        """Try the ways to the registries, several at a time."""
        todo = []
        for name in self._registries[:MOST_REGISTRIES]:
            host, _, repository = name.partition("/")
            todo += [(site, host, repository) for site in sites_of(host, self._config)]

        def one(job: tuple[Any, str, str]) -> Route:
            return try_route(*job)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            self._known["routes"] = tuple(pool.map(one, todo))

    def _ask_containerd(self, native: ContainerdClient, info: Mapping[str, str]) -> None:
        native.version()
        daemon = find_daemon(native)
        pid = daemon.pid if daemon is not None else None
        self._config = config_path(pid)
        settings = pull_settings(info, pid=pid)
        self._known["downloads"] = settings.max_concurrent_downloads
        self._known["timeout_s"] = settings.progress_timeout_s
        book = LeaseBook(native)
        book.refresh()
        leases = [one for one in native.leases() if one.labels.keys() == {EXPIRY_LABEL}]
        self._known["dead_leases"] = sum(book.is_outlived(created_at(one)) for one in leases)
        now_s = time.time()
        touched = [(one, one.updated_at.ToNanoseconds() / 1e9) for one in native.statuses()]
        dead = [
            one
            for one, at_s in touched
            if now_s - at_s > STALE_S or book.is_outlived(at_s - _START_S)
        ]
        self._known["dead_ingests"] = len(dead)
        self._known["dead_bytes"] = sum(one.offset for one in dead)


def _registries_of(images: Iterable[cri_pb2.Image]) -> list[str]:
    """Return the registries of the node's images, those of most images first, with a repository."""
    found: dict[str, list[str]] = {}
    for image in images:
        for name in image.repo_tags[:1]:
            reference = parse(name)
            found.setdefault(reference.host, []).append(reference.path)
    ordered = sorted(found, key=lambda host: -len(found[host]))
    return [f"{host}/{found[host][0]}" for host in ordered]


def _is_synchronized() -> bool | None:
    """Return whether the kernel says that the clock is kept right (adjtimex(2)); None: unknown."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else bool(state != _TIME_ERROR)


def _stages(images: CriClient) -> Iterator[str]:
    """Yield what killed copies have left in the containers' file systems, as far as a second goes.

    They are looked for near the roots of overlayfs's upper directories.
    """
    answer = images.call("ImageFsInfo", cri_pb2.ImageFsInfoRequest())
    until = time.monotonic() + _LOOK_S
    for filesystem in answer.image_filesystems:
        top = os.path.join(noderoot.locate(filesystem.fs_id.mountpoint), "snapshots")  # noqa: PTH118 (os.walk's)
        for folder, names, _ in os.walk(top):
            if time.monotonic() > until:
                return
            yield from (f"{folder}/{name}" for name in names if _STAGE.fullmatch(name))
            if folder.count("/") - top.count("/") > _DEPTH:
                names.clear()
