"""Watches CRI-O's image pulls from outside, through the files they download to.

CRI-O has no call that shows pulls. The sources are on the node: the directory and files of each
pull, and the stored layers (``files``). Sizes come from the image's manifest
(``pulls.registries``). Access requires root and is read-only.

No file names the image. Candidates are pulls announced by callers, pulls that CRI-O logged to the
journal (not visible to an agent in a container), and images that pods wait for. A single unnamed
pull is matched to a single candidate; otherwise it is shown as an ``unknown image``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from pycrictl.base import noderoot
from pycrictl.base.errors import PycrictlError, RuntimeFault
from pycrictl.base.units import plural
from pycrictl.node import journal
from pycrictl.pulls.reference import is_among, may_be
from pycrictl.pulls.registries.credentials import Keyring
from pycrictl.pulls.registries.registry_client import Answers, ManifestRequest, ask
from pycrictl.pulls.sources.crio import files
from pycrictl.pulls.sources.crio.files import (
    DEFAULT_ROOT,
    CrioProcess,
    Downloader,
    FileLayers,
    StoredImage,
)
from pycrictl.pulls.sources.endings import PollResult
from pycrictl.pulls.sources.pull_names import Expected, ImageOwners
from pycrictl.pulls.state import PullState
from pycrictl.runtime.containerd.store import Manifest
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.lists import lookup

_SOON_S: Final = 10.0
"""A pull usually creates its directory within this time after it was logged to the journal."""

_EVENT: Final = re.compile(r'msg"?[=:]"(?:Pulling image: (?P<begun>[^"\\ ]+)|Pulled image: )')
_CALL: Final = re.compile(r'\bid"?[=:]"?([0-9a-f-]{36})')


@dataclass(slots=True, eq=False)
class PullFolder:
    """One pull: a directory with its files, first seen at ``started_s``.

    ``image`` is empty until it is known, and then never changes; ``began_s`` is when the pull was
    requested, 0 if unknown; ``layers`` is None until the manifest request is over.
    """

    folder: str
    owner: Downloader
    started_s: float
    images_before: list[StoredImage]
    image: str = ""
    began_s: float = 0.0
    inquiry: Answers[ManifestRequest, Manifest | None] | None = None
    layers: FileLayers | None = None
    open_numbers: set[int] = field(default_factory=set)
    pods: tuple[str, ...] = ()
    error: str = ""
    is_unknown: bool = False

    def state(self) -> PullState:
        """Return the pull for readers."""
        layers = self.layers or ()
        return PullState(
            image=self.image,
            layers=tuple(layer.state(is_failed=bool(self.error)) for layer in layers),
            pods=self.pods,
            error=self.error,
            began_s=self.began_s,
        )

    @property
    def manifest(self) -> Manifest | None:
        return next(iter(self.inquiry.known.values()), None) if self.inquiry is not None else None

    def made_image(self) -> StoredImage | None:
        images = self.owner.storage.images()
        if (manifest := self.manifest) is not None:
            wanted = manifest.config.digest.partition(":")[2]
            if fitting := [image for image in images if image.id == wanted]:
                return fitting[0]
        for image in images:
            is_its = self.is_unknown or any(may_be(self.image, name) for name in image.names)
            if is_its and image not in self.images_before:
                return image
        return None


@dataclass(eq=False)
class CrioWatcher:
    """The ``ContentWatcher`` for CRI-O; only ``expect`` and ``forget`` are thread-safe."""

    process: CrioProcess
    owners: ImageOwners | None = None
    find_manifest: Callable[[ManifestRequest], Manifest | None] = ask
    keyring: Keyring | None = None
    read_log: Callable[[float], Sequence[journal.JournalLine]] | None = None
    patience_s: float = 1.0  # How long a pull may be unnamed, as lines of the journal come late

    def __post_init__(self) -> None:
        root = Path(noderoot.directory())
        self._read_log = self.read_log or partial(journal.read, units=("crio",), root=root)
        self._expected: list[Expected] = []
        self._pulls: dict[str, PullFolder] = {}
        self._unnamed = 0

    def expect(self, expected: Expected) -> None:
        self._expected.append(expected)

    def forget(self, expected: Expected) -> None:
        self._expected = [other for other in self._expected if other is not expected]

    def ended(self, image: str, started_s: float) -> None:
        """Return None: a finished pull leaves no times behind."""

    def check(self) -> None:
        self._find_folders(self.process.find(), time.time())

    def poll(self, now: float) -> PollResult:
        """Return all pulls with their layers; ``now`` is the time of a monotonic clock."""
        wall_s = time.time()
        owner = self.process.find()
        self._find_folders(owner, wall_s)
        ended = []
        for pull in sorted(self._pulls.values(), key=lambda pull: pull.started_s):
            blobs = files.read_folder(pull.folder, pull.open_numbers)
            if blobs is None or owner.pid != pull.owner.pid:  # CRI-O has been restarted
                ended.append(self._end(pull, wall_s))
                continue
            if not pull.image:
                self._assign_name(pull, wall_s)
            is_known = pull.inquiry is None or pull.inquiry.are_complete
            if pull.layers is None and pull.image and is_known:
                pull.layers = FileLayers(pull.manifest.layers if pull.manifest else None)
            if pull.layers is not None:
                pull.layers.update(blobs, owner.storage.layers(), wall_s)
                if self.owners is not None and not pull.pods:
                    pull.pods = self.owners.pods_of(pull.image)
        active = tuple(pull.state() for pull in self._pulls.values())
        return PollResult(active, tuple(ended))

    def _find_folders(self, owner: Downloader, wall_s: float) -> None:
        for pull in self._pulls.values():
            pull.open_numbers = set()
        # With separate_pull_cgroup, CRI-O pulls in a child process.
        for pid in (owner.pid, *files.children(owner.pid)):
            for path, numbers in files.open_blobs(pid).items():
                folder = f"{owner.root}{path}"
                if folder not in self._pulls:
                    images = owner.storage.images()
                    self._pulls[folder] = PullFolder(folder, owner, wall_s, images)
                self._pulls[folder].open_numbers |= numbers

    def _assign_name(self, pull: PullFolder, wall_s: float) -> None:
        nameless = sum(not other.image for other in self._pulls.values())
        candidates = self._candidates(pull, wall_s)
        if len(candidates) == nameless == 1:
            (known,) = candidates
            known.lease_id = pull.folder
            pull.image, pull.began_s = known.reference, known.since_s
            access = pull.owner.access
            question = ManifestRequest(known.reference, known.credentials, access, self.keyring)
            pull.inquiry = Answers([question], self.find_manifest)
        elif wall_s - pull.started_s >= self.patience_s:
            self._unnamed += 1
            pull.is_unknown = True
            pull.image = f"unknown image ({self._unnamed})"

    def _candidates(self, pull: PullFolder, wall_s: float) -> list[Expected]:
        """Return the images that ``pull`` may be for, or else those that pods wait for."""
        expected = [
            item
            for item in self._expected
            if item.lease_id is None and item.since_s <= pull.started_s
        ]
        known = [item.image for item in self._pulls.values()] + [
            item.reference for item in expected
        ]
        logged = [
            item
            for item in pulls_in_log(self._read_log(wall_s - journal.HISTORY_S))
            if item.since_s <= pull.started_s and not is_among(item.reference, filter(None, known))
        ]
        # An older one may have failed, which is not logged.
        young = [item for item in logged if pull.started_s - item.since_s < _SOON_S]
        candidates = [*expected, *young] or logged
        if not candidates and self.owners is not None:
            known += [name for image in pull.owner.storage.images() for name in image.names]
            wanted = (
                item for item in self.owners.wanted() if not is_among(item, filter(None, known))
            )
            candidates = [Expected(item, 0.0) for item in wanted]
        return candidates

    def _end(self, pull: PullFolder, wall_s: float) -> PullState:
        del self._pulls[pull.folder]
        layers = pull.layers or FileLayers(None)
        layers.update((), pull.owner.storage.layers(), wall_s)
        if pull.made_image() is not None:
            layers.finish()
        else:
            there = len(layers) - len(layers.unsettled)
            seen = f" ({there} of {plural(len(layers), 'layer')} seen complete)" if layers else ""
            pull.error = f"the pull ended without an image{seen}"
        return pull.state()


def pulls_in_log(lines: Iterable[journal.JournalLine]) -> list[Expected]:
    """Return each image's last pull that began and has not succeeded; failures are not logged.

    CRI-O writes ``msg="Pulling image: REF" … id=…`` and ``msg="Pulled image: …" … id=…`` at its
    usual level, in logrus's logfmt or JSON.
    """
    begun: dict[str, Expected] = {}
    for line in lines:
        event, call = _EVENT.search(line.message), _CALL.search(line.message)
        if event is None or call is None:
            continue
        begun.pop(call[1], None)
        if event["begun"]:
            begun[call[1]] = Expected(event["begun"], line.at_s)
    return list({expected.reference: expected for expected in begun.values()}.values())


def open_crio(
    client: CriClient,
    owners: ImageOwners | None = None,
    *,
    keyring: Keyring | None = None,
) -> CrioWatcher | None:
    try:
        if not client.is_crio():
            return None
    except RuntimeFault:
        return None
    store = DEFAULT_ROOT
    with suppress(PycrictlError):
        images = lookup.image_folder(client)
        if images is not None and images.name.endswith("-images"):
            store = str(images.parent)
    process = CrioProcess(client.path, store)
    watcher = CrioWatcher(process, owners, keyring=keyring)
    watcher.check()
    return watcher
