"""Pulls of a real podman in CRI-O's place: it downloads with the same library to the same files."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pycrictl.progress.crio.files import CrioProcess, Downloader
from pycrictl.progress.crio.watcher import CrioWatcher
from pycrictl.progress.endings import PollResult, PullEnding
from pycrictl.progress.pull_names import Expected
from pycrictl.pulls.model import Phase, View
from pycrictl.pulls.tracker import Tracker

from .images import Image
from .lab import MIB, Lab
from .podman import Podman

SIZES = [2 * MIB, 5 * MIB, 3 * MIB, 1 * MIB]
RATE = 6 * MIB
FINAL = {Phase.DONE, Phase.PRESENT}


class PodmanProcess(CrioProcess):
    """A podman that pulls, in the place of CRI-O."""

    def __init__(self, pid: int, store: str) -> None:
        super().__init__("", store)
        self._podman = self.downloader(pid)

    def look(self) -> Downloader:
        return self._podman


class Watching:
    def __init__(self, podman: Podman) -> None:
        self._podman = podman
        self._tracker = Tracker()
        self.views: list[View] = []
        self.results: list[PollResult] = []

    def until_over(self, reference: str) -> subprocess.Popen[bytes]:
        """Pulls an image, looks 20 times a second until that has ended, and once more."""
        expected = Expected(reference, time.time())
        pull = self._podman.pull(reference)
        watcher = CrioWatcher(PodmanProcess(pull.pid, str(self._podman.store)))
        watcher.expect(expected)
        give_up_at = time.monotonic() + 120
        is_over = False
        while not is_over:
            assert time.monotonic() < give_up_at
            is_over = pull.poll() is not None
            now = time.monotonic()
            self.results.append(watcher.poll(self._tracker, now))
            self.views.append(self._tracker.view(now))
            time.sleep(0.05)
        assert not self.results[-1].active
        return pull

    @property
    def endings(self) -> dict[str, PullEnding]:
        return {ended.image: ended.ending for result in self.results for ended in result.ended}

    def totals(self) -> list[tuple[int, int]]:
        return [(v.totals.progress, v.totals.total) for v in self.views if v.items]

    def check_that_nothing_goes_back(self) -> None:
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
    pull = watching.until_over(reference)
    assert pull.returncode == 0, podman.stderr()
    watching.check_that_nothing_goes_back()
    assert watching.endings == {reference: PullEnding.DONE}
    totals = watching.totals()
    assert len(totals) > 5
    assert {total for _, total in totals} == {image.layers_bytes}
    assert totals[-1] == (image.layers_bytes, image.layers_bytes)
    assert any(0 < progress < total for progress, total in totals)
    assert arrived(watching, reference) == whole(image)


def test_a_pull_that_fails(lab: Lab, podman: Podman) -> None:
    image, reference = push(lab, "podman4:1", seed=104)
    lab.throttle.limit(RATE)
    lab.throttle.cut(image.layers[2].digest, after_bytes=MIB)
    watching = Watching(podman)
    pull = watching.until_over(reference)
    assert pull.returncode != 0
    watching.check_that_nothing_goes_back()
    assert watching.endings == {reference: PullEnding.FAILED}
    items = watching.views[-1].items
    failed = [item for item in items if item.phase is Phase.FAILED]
    assert failed
    assert all(item.error for item in failed)
    assert watching.totals()[-1][0] < image.layers_bytes
