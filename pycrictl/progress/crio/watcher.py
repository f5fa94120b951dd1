"""Watches image pulls of CRI-O from outside: by the files that they download to.

No call shows a pull. What there is lies on the node: the directory and the files of each pull
(``bigfiles``), the layers that are stored already (``storage``), and which image a pull is for: the
caller's own knowledge, CRI-O's log (``log``), or what pods wait for. The sizes come from the
image's manifest (``registry.manifest``). All of it takes root, and is only read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pycrictl._proto import cri_pb2
from pycrictl.errors import PycrictlError, RuntimeFault
from pycrictl.progress.content_watcher import ActivePull, EndedPull, PollResult, PullEnding
from pycrictl.progress.crio import bigfiles
from pycrictl.progress.crio.claims import PATIENCE_S, Claims
from pycrictl.progress.crio.downloaders import (
    CrioProcess,
    Downloader,
    children,
    unpacker_read_bytes,
)
from pycrictl.progress.crio.filelayers import FileLayers
from pycrictl.progress.crio.pullfolder import PullFolder
from pycrictl.progress.crio.storage import DEFAULT_ROOT, Storage
from pycrictl.progress.pull_bytes import PullBytes
from pycrictl.progress.pull_names import Expected
from pycrictl.progress.registry.manifest import Inquiry, ask
from pycrictl.progress.registry.requests import ManifestRequest
from pycrictl.pulls.model import Phase
from pycrictl.pulls.tracker import Tracker
from pycrictl.wire.progress import Report

if TYPE_CHECKING:
    from pycrictl.containerd.store import Manifest
    from pycrictl.cri.calls.client import CriClient
    from pycrictl.progress.owners import ImageOwners


class CrioWatcher:
    """Looks at the pulls of CRI-O, and feeds a tracker with every layer of each.

    It can take the place of a ``ContentWatcher``.

    Not thread-safe, except for ``expect`` and ``forget``.
    """

    def __init__(
        self,
        process: CrioProcess,
        *,
        owners: ImageOwners | None = None,
        wants_manifests: bool = True,
        find_manifest: Callable[[ManifestRequest], Manifest | None] = ask,
    ) -> None:
        self._process = process
        self._wants_manifests = wants_manifests
        self._find_manifest = find_manifest
        self._claims = Claims(owners)
        self._stores: dict[str, Storage] = {}
        self._pulls: dict[str, PullFolder] = {}
        self._unnamed = 0

    def expect(self, expected: Expected) -> None:
        """Announce a pull, before it is asked for, so that it will be shown by its name.

        The first directory that appears from then on is taken for it, and of several the order in
        which they appear for that of the announcements.
        """
        self._claims.expect(expected)

    def check(self) -> None:
        """Look at the processes once, to learn whether their files can be seen at all.

        Raises:
            ConnectError, PycrictlError: as ``poll``.
        """
        self._find_folders(self._process.look(), time.time())

    def forget(self, expected: Expected) -> None:
        self._claims.forget(expected)

    def poll(self, tracker: Tracker, now: float, *, wall_s: float | None = None) -> PollResult:
        """Look at all pulls and report every layer of them to ``tracker``.

        Args:
            now: monotonic seconds, the tracker's time.
            wall_s: wall time; the clock's by default.

        Raises:
            ConnectError: the runtime is restarting.
            PycrictlError: its files cannot be seen from here.
        """
        wall_s = time.time() if wall_s is None else wall_s
        owners = self._process.look()
        for owner in owners:
            if owner.log is not None:
                self._claims.logged.feed(owner.log.read())
        self._find_folders(owners, wall_s)
        ended = []
        for pull in sorted(self._pulls.values(), key=lambda pull: pull.started_s):
            files = bigfiles.read_folder(pull.folder, pull.open_numbers)
            is_orphan = all(owner.pid != pull.owner.pid for owner in owners)
            if files is None or is_orphan:
                ended.append(self._end(pull, tracker, now, wall_s, is_orphan=is_orphan))
                continue
            if not pull.image:
                self._assign_name(pull, tracker, wall_s)
            is_known = pull.inquiry is None or pull.inquiry.is_over
            if pull.layers is None and pull.image and is_known:
                pull.manifest = pull.inquiry.manifest if pull.inquiry is not None else None
                pull.layers = pull.new_layers()
            if pull.layers is not None:
                pull.files = files = pull.without_documents(files)
                if pull.layers.is_doubtful:
                    self._exchange(pull, tracker)
                pull.layers.look(files, pull.storage.layers(), wall_s)
                pull.watch_unpacking()
                pull.pods = pull.pods or self._claims.pods_of(pull.image)
                _report(tracker, pull, now, wall_s)
        pulls = self._pulls.values()
        active = tuple(ActivePull(pull.folder, pull.image, pull.started_s) for pull in pulls)
        return PollResult(active, tuple(ended))

    def weigh(self, name: str, since_s: float) -> PullBytes | None:
        """Return what a pull took that has just ended.

        Args:
            name: of the image, in its canonical spelling.
            since_s: wall time at which the pull began.

        Returns:
            None if its image is not there any more.
        """
        for owner in self._process.look():
            storage = self._storage(f"{bigfiles.root_of(owner.pid)}{owner.store}")
            if (weight := storage.weigh(name, since_s)) is not None:
                return weight
        return None

    def _storage(self, root: str) -> Storage:
        return self._stores.setdefault(root, Storage(root))

    def _find_folders(self, owners: Iterable[Downloader], wall_s: float) -> None:
        for pull in self._pulls.values():
            pull.open_numbers = set()
        for owner in owners:
            # With separate_pull_cgroup, CRI-O pulls in a child.
            for pid in (owner.pid, *children(owner.pid)):
                try:
                    root = bigfiles.root_of(pid)
                    opened = bigfiles.open_blobs(pid)
                except ProcessLookupError:
                    continue
                except PermissionError:
                    raise PycrictlError(
                        "the pulls of CRI-O can be seen only by root, in its files",
                        hint="run as root on the node, or ask pycrictl proxy",
                    ) from None
                for path, numbers in opened.items():
                    self._open(f"{root}{path}", f"{root}{owner.store}", owner, numbers, wall_s)
            self._adopt(owner, wall_s)

    def _adopt(self, owner: Downloader, wall_s: float) -> None:
        """Take up a pull whose files are all complete, and which is being unpacked.

        It has no file open that it writes. While a process unpacks and no pull of it is known, the
        youngest directory is that pull's, if it is where directories usually are.
        """
        if all(pull.owner.pid != owner.pid for pull in self._pulls.values()):
            if unpacker_read_bytes(owner.pid) is not None:
                root = bigfiles.root_of(owner.pid)
                if folder := bigfiles.newest_folder(f"{root}{owner.base}"):
                    self._open(folder, f"{root}{owner.store}", owner, set(), wall_s)

    def _open(
        self, folder: str, store: str, owner: Downloader, numbers: set[int], wall_s: float
    ) -> None:
        pull = self._pulls.get(folder)
        if pull is None:
            storage = self._storage(store)
            pull = self._pulls[folder] = PullFolder(folder, owner, storage, wall_s)
            pull.images_before = storage.images()
        pull.open_numbers |= numbers

    def _assign_name(self, pull: PullFolder, tracker: Tracker, wall_s: float) -> None:
        running = {other.image for other in self._pulls.values() if other.image}
        stored = (name for image in pull.storage.images() for name in image.names)
        pull.claim = self._claims.claim(pull.folder, pull.started_s, {*running, *stored})
        if pull.claim is None and wall_s - pull.started_s < PATIENCE_S:
            return
        reference = ""
        if pull.claim is not None:
            reference, credentials, _, _ = pull.claim
            if self._wants_manifests:
                root = bigfiles.root_of(pull.owner.pid)
                question = ManifestRequest(reference, credentials, pull.owner.environ, root)
                pull.inquiry = Inquiry(question, self._find_manifest)
        if not reference or reference in running:
            self._unnamed += 1
            reference = f"{reference or 'unknown image'} ({self._unnamed})"
        pull.image = reference
        tracker.forget(reference)  # what an earlier attempt has left

    def _exchange(self, one: PullFolder, tracker: Tracker) -> None:
        """Exchange the images of two pulls that began together, if that explains their files."""
        for other in self._pulls.values():
            if other is not one and one.would_fit(other) and other.would_fit(one):
                for image in (one.image, other.image):
                    tracker.forget(image)
                one.image, other.image = other.image, one.image
                one.claim, other.claim = other.claim, one.claim
                one.manifest, other.manifest = other.manifest, one.manifest
                for pull in (one, other):
                    pull.pods = ""
                    pull.layers = pull.new_layers()
                return

    def _end(
        self, pull: PullFolder, tracker: Tracker, now: float, wall_s: float, *, is_orphan: bool
    ) -> EndedPull:
        del self._pulls[pull.folder]
        layers = pull.layers or FileLayers(None)
        image = pull.find_image(layers)
        logged = pull.claim.logged if pull.claim is not None else None
        if image is not None or (logged is not None and logged.has_ended):
            layers.finish(pull.storage.layers_of(image) if image is not None else {})
            ending = PullEnding.DONE
        else:
            reason = "CRI-O ended during the pull" if is_orphan else "the pull ended"
            there = len(layers) - len(layers.unsettled)
            what = f" ({there} of {len(layers)})" if len(layers) else ""
            pull.error = f"{reason} before all layers were there{what}"
            ending = PullEnding.FAILED
        if pull.image:
            _report(tracker, pull, now, wall_s)
        return EndedPull(pull.folder, pull.image, ending, pull.error)


def _report(tracker: Tracker, pull: PullFolder, now: float, wall_s: float) -> None:
    began_s = pull.claim.began_s if pull.claim is not None else None
    age_s = None if began_s is None else max(wall_s - began_s, 0.0)
    for layer in pull.layers or ():
        is_settled = layer.phase in (Phase.DONE, Phase.PRESENT)
        report = Report(
            image=pull.image,
            layer=layer.name,
            progress=layer.progress,
            total=layer.size_bytes,
            error="" if is_settled else pull.error,
            phase=layer.phase,
            extracted=layer.extracted,
            extracted_total=layer.extracted_total,
            pod=pull.pods,
            digest=layer.digest if layer.digest != layer.name else "",
        )
        tracker.apply(report, now=now, idle_s=layer.idle_s, age_s=age_s)


def open_crio(
    client: CriClient, owners: ImageOwners | None = None, *, wants_manifests: bool = True
) -> CrioWatcher | None:
    """Return a watcher of the CRI-O behind ``client``'s socket; None for another runtime.

    Raises:
        PycrictlError: its files cannot be seen from here.
    """
    try:
        name = client.call("Version", cri_pb2.VersionRequest()).runtime_name
    except RuntimeFault:
        return None
    if name.lower() != "cri-o":
        return None
    store = DEFAULT_ROOT
    with suppress(PycrictlError, IndexError):
        info = client.call("ImageFsInfo", cri_pb2.ImageFsInfoRequest())
        images = Path(info.image_filesystems[0].fs_id.mountpoint)
        if images.name.endswith("-images"):
            store = str(images.parent)
    process = CrioProcess(client.path, store)
    watcher = CrioWatcher(process, owners=owners, wants_manifests=wants_manifests)
    watcher.check()
    return watcher
