"""Collects facts about a node; a failed source is recorded, and the others are still queried.

``Collector``, which records failed sources, is also the base of ``survey``, which collects facts
about pods.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pycrictl._proto import cri_pb2
from pycrictl.base import noderoot
from pycrictl.base.errors import ConnectError, DeadlineExceeded, PycrictlError, reason_of
from pycrictl.base.units import format_duration
from pycrictl.diagnosis.findings import Disk, Missing, RuntimeCondition
from pycrictl.diagnosis.node_findings import NodeFacts
from pycrictl.diagnosis.registry import Trial
from pycrictl.node.kubelet import configuration, find_kubelet, find_kubelet_config
from pycrictl.pulls.reference import Reference, parse
from pycrictl.pulls.registries.credentials import Keyring
from pycrictl.pulls.registries.mirrors import access_of
from pycrictl.runtime.cri.calls.errmap import unreachable
from pycrictl.runtime.cri.lists.images import sandbox_image

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from google.protobuf.message import Message

    from pycrictl.runtime.cri.calls.client import CriClient

MOST_REGISTRIES: Final = 4
BUDGET_S: Final = 4.0
"""Time limit of the whole collection; sources that take longer are recorded as missing."""

CALL_S: Final = 1.5
"""Time limit of one call to the runtime."""


OTHERS: Final = (("/var/lib/kubelet", "pods' volumes"), ("/var/log/pods", "logs"))
USUAL: Final = (
    ("/var/lib/containerd", "images"),
    ("/var/lib/containers", "images"),
    ("/var/lib/rancher", "images"),
    *OTHERS,
)
"""The usual directories, for when the runtime does not report its own."""


class Collector:
    """Records the sources that fail."""

    def __init__(self) -> None:
        self._missing: list[Missing] = []

    @contextmanager
    def _optional(self, source: str, *, but: type[Exception] | tuple[()] = ()) -> Iterator[None]:
        """Record a source that fails, and continue; errors of the type ``but`` are raised."""
        try:
            yield
        except but:
            raise
        except (PycrictlError, OSError) as exc:
            reason = exc.message if isinstance(exc, PycrictlError) else reason_of(exc)
            self._missing.append(Missing(source, reason))


def unmet(status: cri_pb2.RuntimeStatus) -> tuple[RuntimeCondition, ...]:
    return tuple(
        RuntimeCondition(condition.type, condition.message or condition.reason)
        for condition in status.conditions
        if not condition.status
    )


def places_of(answer: cri_pb2.ImageFsInfoResponse) -> list[tuple[str, str]]:
    return [
        *((usage.fs_id.mountpoint, "images") for usage in answer.image_filesystems),
        *((usage.fs_id.mountpoint, "containers") for usage in answer.container_filesystems),
        *OTHERS,
    ]


def disks_at(places: Iterable[tuple[str, str]]) -> tuple[Disk, ...]:
    """Return the file systems of the node's directories (path, use), each once."""
    by_device: dict[int, Disk] = {}
    for path, use in places:
        here = noderoot.locate(path)
        try:
            device, sizes = os.stat(here).st_dev, os.statvfs(here)  # noqa: PTH116 (a node's path)
        except OSError:
            continue  # it does not exist
        size_bytes, free_bytes = sizes.f_blocks * sizes.f_frsize, sizes.f_bavail * sizes.f_frsize
        disk = Disk(path, use, size_bytes, free_bytes, sizes.f_files, sizes.f_favail)
        by_device.setdefault(device, disk)
    return tuple(by_device.values())


class NodeCollector(Collector):
    """Collects the facts about a node within seconds.

    ``registries`` are hosts or image references; by default, those of the node's images.
    """

    def __init__(
        self,
        registries: Iterable[str] = (),
        *,
        tries_registries: bool = True,
        keyring: Keyring | None = None,
    ) -> None:
        super().__init__()
        self._jobs: list[tuple[str, threading.Thread]] = []
        self._keyring = keyring
        self._registries = [_registry(text) for text in registries]
        self._are_named = bool(self._registries)
        self._tries_registries = tries_registries
        self._known: dict[str, Any] = {}
        self._silent: list[str] = []
        self._trials: list[Trial] = []
        self._runtime = ("", "", "")

    def collect(
        self,
        connect: Callable[[], tuple[CriClient, CriClient]],
        root: Path,
        ask_proxy: Callable[[], Mapping[str, Any]],
    ) -> NodeFacts:
        clients: list[CriClient] = []
        self._begin("runtime", lambda: self._ask_runtime(connect, clients))
        self._begin("host", lambda: self._read_host(root))
        self._begin("proxy", lambda: self._known.update(ask_proxy()))
        self._end(BUDGET_S)
        for client in clients:
            client.close()
        if os.geteuid():
            reason = "some settings, and perhaps the proxy"
            self._missing.append(Missing("what only root sees", reason))
        known = dict(self._known)
        known["routes"] = tuple(trial.route() for trial in list(self._trials))
        return NodeFacts(**known, silent=tuple(self._silent), missing=tuple(self._missing))

    def _ask_runtime(
        self, connect: Callable[[], tuple[CriClient, CriClient]], clients: list[CriClient]
    ) -> None:
        known = self._known
        try:
            client, images = connect()
        except ConnectError as exc:
            known["problem"] = exc.message
            known["is_forbidden"] = "permission denied" in exc.message
            self._begin("disks", self._read_disks)
            self._begin_registries()
            return
        clients += {client, images}
        known["endpoint"] = client.endpoint
        with self._optional("runtime version"):
            answer = self._call(client, "Version", cri_pb2.VersionRequest())
            known["runtime"] = f"{answer.runtime_name} {answer.runtime_version}"
            self._runtime = client.endpoint, answer.runtime_name, answer.runtime_version
        if self._silent:
            self._begin("disks", self._read_disks)
            self._begin_registries()
            return
        self._begin("disks", lambda: self._read_disks(images))
        self._begin(
            "containers",
            lambda: self._call(client, "ListContainers", cri_pb2.ListContainersRequest()),
        )
        info: dict[str, str] = {}
        with self._optional("runtime status"):
            status = self._call(client, "Status", cri_pb2.StatusRequest(verbose=True))
            info = dict(status.info)
            known["conditions"] = unmet(status.status)
        if name := sandbox_image(info):
            with self._optional("sandbox image"):
                request = cri_pb2.ImageStatusRequest(image=cri_pb2.ImageSpec(image=name))
                if not self._call(images, "ImageStatus", request).HasField("image"):
                    known["missing_sandbox_image"] = name
        if not self._registries:
            with self._optional("images"):
                listed = self._call(images, "ListImages", cri_pb2.ListImagesRequest())
                self._registries = _registries_of(listed.images)
        self._begin_registries()

    def _call(self, client: CriClient, name: str, request: Message) -> Any:
        try:
            return client.call(name, request, timeout_s=CALL_S)
        except (DeadlineExceeded, ConnectError) as exc:
            said = exc.message.removeprefix(f"{name}: ")
            self._silent.append(f"{name}: {said.removeprefix(unreachable(client.endpoint))}")
            raise

    def _read_disks(self, images: CriClient | None = None) -> None:
        places: Iterable[tuple[str, str]] = USUAL
        if images is not None:
            with self._optional("disks"):
                answer = self._call(images, "ImageFsInfo", cri_pb2.ImageFsInfoRequest())
                places = places_of(answer)
        self._known["disks"] = disks_at(places)

    def _read_host(self, root: Path) -> None:
        kubelet = find_kubelet(root)
        settings = configuration(kubelet, root)
        with self._optional("kubelet's configuration"):
            pulls = find_kubelet_config(kubelet, root)
            self._known["kubelet_config"] = pulls.path
            self._known["kubelet_limit"] = pulls.own_limit
        runtime = kubelet.runtime_endpoint or settings.get("containerRuntimeEndpoint") or ""
        images = kubelet.image_endpoint or settings.get("imageServiceEndpoint") or runtime
        self._known["kubelet_endpoints"] = (str(runtime), str(images))

    def _begin(self, source: str, ask: Callable[[], object]) -> None:
        """Query a source in a daemon thread of its own."""

        def run() -> None:
            with self._optional(source):
                ask()

        thread = threading.Thread(target=run, daemon=True)
        self._jobs.append((source, thread))
        thread.start()

    def _end(self, within_s: float) -> None:
        """Wait for all queries, including those they begin; record any that take longer."""
        until = time.monotonic() + within_s
        for source, thread in self._jobs:  # may grow meanwhile
            thread.join(max(until - time.monotonic(), 0.0))
            if thread.is_alive():
                reason = f"no answer within {format_duration(within_s)}"
                self._missing.append(Missing(source, reason))

    def _begin_registries(self) -> None:
        if not self._tries_registries:
            return
        access = access_of(*self._runtime)
        self._known["registry_doubt"] = access.doubt
        self._known["ignored_config_path"] = access.trap
        for reference in self._registries[:MOST_REGISTRIES]:
            endpoints = access.endpoints(reference)
            if not endpoints:
                reason = "not tested: the runtime's configuration allows no server for it"
                self._missing.append(Missing(f"registry {reference.host}", reason))
            for endpoint in endpoints:
                try:
                    trial = Trial(
                        endpoint, access, reference, self._keyring, is_named=self._are_named
                    )
                except ValueError as exc:
                    self._missing.append(Missing(f"registry {endpoint.url()}", str(exc)))
                    continue
                self._trials.append(trial)
                self._begin(f"registry {endpoint.url()}", trial.run)


def _registry(text: str) -> Reference:
    """Read HOST, or a reference to an image; without a slash, it is a host."""
    return parse(text) if "/" in text else Reference(text, "", "", "")


def _registries_of(images: Iterable[cri_pb2.Image]) -> list[Reference]:
    """Return an image of each registry of the node's images, the most frequent registry first."""
    by_host: dict[str, list[Reference]] = {}
    for image in images:
        for name in image.repo_tags[:1]:
            reference = parse(name)
            by_host.setdefault(reference.host, []).append(reference)
    return [images[0] for images in sorted(by_host.values(), key=len, reverse=True)]
