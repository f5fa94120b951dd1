"""Pulls of a real podman in CRI-O's place: it downloads with the same library to the same files."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pycrictl.progress.content_watcher import PollResult, PullEnding
from pycrictl.progress.crio.process import CrioProcess, Downloader
from pycrictl.progress.crio.watcher import CrioWatcher
from pycrictl.progress.pull_names import Expected
from pycrictl.progress.registry.manifest import ask
from pycrictl.progress.registry.requests import Credentials, ManifestRequest
from pycrictl.pulls.model import Phase, View
from pycrictl.pulls.tracker import Tracker

from .images import Image
from .lab import MIB, Lab
from .podman import Podman

SIZES = [2 * MIB, 5 * MIB, 3 * MIB, 1 * MIB]
RATE = 6 * MIB
FINAL = {Phase.DONE, Phase.PRESENT}


class Podmans(CrioProcess):
    """Running podmans in CRI-O's place."""

    def __init__(self, podman: Podman, pulls: Sequence[subprocess.Popen[bytes]]) -> None:
        super().__init__("", str(podman.store))
        self._pulls = pulls

    def look(self) -> list[Downloader]:
        running = (pull.pid for pull in self._pulls if pull.poll() is None)
        return [Downloader(pid, self._store) for pid in running]


class Watching:
    """What was seen of some pulls, look by look."""

    def __init__(self, podman: Podman, *, wants_manifests: bool = True) -> None:
        self._podman = podman
        self._wants_manifests = wants_manifests
        self._tracker = Tracker()
        self.views: list[View] = []
        self.results: list[PollResult] = []

    def until_over(self, *references: str) -> list[subprocess.Popen[bytes]]:
        """Pulls images, looks 20 times a second until that has ended, and once more."""
        pulls: list[subprocess.Popen[bytes]] = []
        watcher = CrioWatcher(Podmans(self._podman, pulls), wants_manifests=self._wants_manifests)
        for reference in references:
            watcher.expect(Expected(reference, time.time()))
            pulls.append(self._podman.pull(reference))
        give_up_at = time.monotonic() + 120
        is_over = False
        while not is_over:
            assert time.monotonic() < give_up_at
            is_over = all(pull.poll() is not None for pull in pulls)
            now = time.monotonic()
            self.results.append(watcher.poll(self._tracker, now))
            self.views.append(self._tracker.view(now))
            time.sleep(0.05)
        assert not self.results[-1].active
        return pulls

    @property
    def endings(self) -> dict[str, PullEnding]:
        return {ended.image: ended.ending for result in self.results for ended in result.ended}

    def totals(self) -> list[tuple[int, int]]:
        return [(v.totals.progress, v.totals.total) for v in self.views if v.items]

    def check_that_nothing_goes_back(self) -> None:
        """No layer has fewer bytes than before, and none goes away."""
        before: dict[tuple[str, str], int] = {}
        for view in self.views:
            found = {(item.image, item.layer): item.progress for item in view.items}
            assert before.keys() <= found.keys()
            back = {key: (count, found[key]) for key, count in before.items() if found[key] < count}
            assert not back
            before = found


@pytest.fixture
def podman(folder: Path) -> Iterator[Podman]:
    podman = Podman(folder)
    yield podman
    podman.close()


def push(lab: Lab, name: str, *, seed: int) -> tuple[Image, str]:
    layers = [lab.base, *lab.layout.random_layers(SIZES, seed=seed)]
    image = lab.layout.image(name, layers)
    return image, lab.push(image)


def whole(image: Image) -> dict[str, int]:
    return {layer.digest: layer.size_bytes for layer in image.layers}


def arrived(watching: Watching, reference: str) -> dict[str, int]:
    items = [item for item in watching.views[-1].items if item.image == reference]
    assert {item.phase for item in items} <= FINAL
    return {item.digest or item.layer: item.progress for item in items}


def test_a_pull_with_its_manifest(lab: Lab, podman: Podman) -> None:
    image, reference = push(lab, "podman1:1", seed=101)
    lab.throttle.limit(RATE)
    watching = Watching(podman)
    (pull,) = watching.until_over(reference)
    assert pull.returncode == 0, podman.stderr()
    watching.check_that_nothing_goes_back()
    assert watching.endings == {reference: PullEnding.DONE}
    totals = watching.totals()
    assert len(totals) > 5
    assert {total for _, total in totals} == {image.layers_bytes}
    assert totals[-1] == (image.layers_bytes, image.layers_bytes)
    assert any(0 < progress < total for progress, total in totals)
    assert arrived(watching, reference) == whole(image)


def test_a_pull_without_a_manifest(lab: Lab, podman: Podman) -> None:
    image, reference = push(lab, "podman2:1", seed=102)
    lab.throttle.limit(RATE)
    watching = Watching(podman, wants_manifests=False)
    watching.until_over(reference)
    watching.check_that_nothing_goes_back()
    assert watching.endings == {reference: PullEnding.DONE}
    running = zip(watching.views, watching.results, strict=True)
    assert all(view.totals.percent is None for view, result in running if result.active)
    assert arrived(watching, reference) == whole(image)


def test_a_layer_that_is_present(lab: Lab, podman: Podman) -> None:
    assert podman.pull(lab.reference(lab.busybox)).wait() == 0
    image, reference = push(lab, "podman3:1", seed=103)
    lab.throttle.limit(RATE)
    watching = Watching(podman)
    watching.until_over(reference)
    watching.check_that_nothing_goes_back()
    assert arrived(watching, reference) == whole(image)
    phases = {item.digest or item.layer: item.phase for item in watching.views[-1].items}
    present = [digest for digest, phase in phases.items() if phase is Phase.PRESENT]
    assert present == [lab.base.digest]
    assert {total for _, total in watching.totals()} == {image.layers_bytes}


def test_a_pull_that_fails(lab: Lab, podman: Podman) -> None:
    image, reference = push(lab, "podman4:1", seed=104)
    lab.throttle.limit(RATE)
    lab.throttle.cut(image.layers[2].digest, after_bytes=MIB)
    watching = Watching(podman)
    (pull,) = watching.until_over(reference)
    assert pull.returncode != 0
    watching.check_that_nothing_goes_back()
    assert watching.endings == {reference: PullEnding.FAILED}
    items = watching.views[-1].items
    failed = [item for item in items if item.phase is Phase.FAILED]
    assert failed
    assert all(item.error for item in failed)
    assert watching.totals()[-1][0] < image.layers_bytes


def test_two_pulls_at_once(lab: Lab, podman: Podman) -> None:
    """Nothing says which is which."""
    pushed = [push(lab, f"podman{number}:1", seed=100 + number) for number in (5, 6)]
    lab.throttle.limit(RATE)
    watching = Watching(podman)
    watching.until_over(*(reference for _, reference in pushed))
    watching.check_that_nothing_goes_back()
    assert set(watching.endings.values()) == {PullEnding.DONE}
    assert len(watching.endings) == 2
    assert any(len(result.active) == 2 for result in watching.results)
    assert watching.views[-1].totals.progress == sum(image.layers_bytes for image, _ in pushed)


def test_a_registry_with_a_login(lab: Lab) -> None:
    image, reference = push(lab, "podman8:1", seed=108)
    lab.throttle.require_login("me", "se:cret")

    def found(credentials: Credentials | None) -> dict[str, int] | None:
        manifest = ask(ManifestRequest(reference, credentials))
        return manifest and {layer.digest: layer.size_bytes for layer in manifest.layers}

    assert found(None) is None
    assert found(Credentials("me", "wrong")) is None
    assert found(Credentials("me", "se:cret")) == whole(image)
