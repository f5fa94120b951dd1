"""Pulls of a fake CRI-O, observed from outside."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.base.errors import ConnectError, PycrictlError
from pycrictl.kube.pods import Pod, PodImage
from pycrictl.node.journal import JournalLine
from pycrictl.pulls.registries.credentials import Credentials
from pycrictl.pulls.registries.registry_client import ManifestRequest
from pycrictl.pulls.sources.crio.files import (
    BlobFile,
    CrioProcess,
    FileLayer,
    FileLayers,
    Storage,
    StoredLayer,
)
from pycrictl.pulls.sources.crio.watcher import CrioWatcher, pulls_in_log
from pycrictl.pulls.sources.endings import PollResult
from pycrictl.pulls.sources.pull_names import Expected, ImageOwners
from pycrictl.pulls.state import LayerState, Phase, View
from pycrictl.pulls.tracker import Tracker
from pycrictl.runtime.containerd.store import Descriptor, Manifest
from tests.pulls.sources.crio.fakecrio import FakeCrio, fake_crio
from tests.pulls.tracking import layers

IMAGE = "a.io/b:1"
CONFIG = "sha256:" + "c" * 64


def digest(letter: str) -> str:
    return f"sha256:{letter.encode().hex():0>64}"


def manifest(**sizes: int) -> Manifest:
    layers = (Descriptor(digest(letter), size, "") for letter, size in sizes.items())
    return Manifest(Descriptor(CONFIG, 2, ""), tuple(layers))


@pytest.fixture
def crio(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCrio]:
    # Without its socket, the only other process of that name would be taken for it: another test's.
    monkeypatch.setattr("pycrictl.base.noderoot.is_nodes_own", lambda pid: False)
    with fake_crio() as crio:
        yield crio


class Bench:
    """A watcher of a fake CRI-O, its tracker, and its requests to registries."""

    def __init__(
        self,
        crio: FakeCrio,
        answers: dict[str, Manifest] | None = None,
        *pods: Pod,
    ) -> None:
        self.questions: list[ManifestRequest] = []
        self._answers = answers or {}
        self.watcher = CrioWatcher(
            CrioProcess(crio.path, str(crio.store)),
            owners=ImageOwners(lambda: pods),
            find_manifest=self._find,
            read_log=lambda since_s: crio.journal,
        )
        self.tracker = Tracker()
        self.view: View | None = None

    def _find(self, question: ManifestRequest) -> Manifest | None:
        self.questions.append(question)
        return self._answers.get(question.reference)

    def poll(self) -> PollResult:
        now = time.monotonic()
        result = self.watcher.poll(now)
        result.apply_to(self.tracker, now)
        self.view = self.tracker.view(now)
        return result

    def poll_until(self, condition: Callable[[], object]) -> None:
        give_up_at = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < give_up_at
            time.sleep(0.02)
            self.poll()

    @property
    def items(self) -> list[LayerState]:
        assert self.view is not None
        return layers(self.view)

    def numbers(self) -> list[tuple[str, str, int, int]]:
        return [(item.name, item.phase, item.progress, item.total) for item in self.items]


def test_a_pull_from_its_first_file_to_its_image(crio: FakeCrio) -> None:
    crio.commit(digest("a"), 10)
    bench = Bench(crio, {IMAGE: manifest(a=10, b=20, d=30)})
    crio.say("Pulling image: a.io/failed:1", 7, ago_s=60.0)
    crio.say(f"Pulling image: {IMAGE}")
    assert bench.poll() == PollResult((), ())
    pull = crio.pull()
    pull.write(1, 5)
    bench.poll()
    bench.poll_until(lambda: bench.items)
    assert bench.numbers() == [
        (digest("a"), Phase.PRESENT, 10, 10),
        ("layer 2 of 3", Phase.DOWNLOADING, 5, 20),
        ("layer 3 of 3", Phase.WAITING, 0, 30),
    ]
    assert [active.image for active in bench.poll().active] == [IMAGE]
    pull.write(2, 6)
    pull.write(1, 30, closed=True)
    bench.poll()
    assert bench.view is not None
    assert (bench.view.sums.progress, bench.view.sums.total) == (46, 60)
    assert [item.digest for item in bench.items] == ["", digest("d"), ""]
    pull.write(2, 20, closed=True)
    crio.commit(digest("b"), 20)
    bench.poll()
    assert [item.phase for item in bench.items] == [Phase.PRESENT, Phase.EXTRACTING, Phase.DONE]
    crio.commit(digest("d"), 30)
    crio.commit_image("c" * 64, IMAGE)
    pull.end()
    (ended,) = bench.poll().ended
    assert (ended.image, ended.error) == (IMAGE, "")
    assert [(item.phase, item.progress) for item in bench.items] == [
        (Phase.PRESENT, 10), (Phase.DONE, 30), (Phase.DONE, 20),
    ]  # fmt: skip
    assert [question.reference for question in bench.questions] == [IMAGE]


def test_two_pulls_at_once(crio: FakeCrio) -> None:
    other = "a.io/other:2"
    answers = {IMAGE: manifest(a=10), other: manifest(a=10, b=20)}
    bench = Bench(crio, answers)
    crio.say("Pulling image: a.io/failed:1", ago_s=60.0)
    first = Expected(IMAGE, time.time())
    bench.watcher.expect(first)
    first_pull = crio.pull()
    first_pull.write(1, 3)
    bench.poll()
    second = Expected(other, time.time(), Credentials("me", "secret"))
    bench.watcher.expect(second)
    two = crio.pull()
    two.write(1, 4)
    two.write(2, 11)
    bench.poll()
    bench.poll_until(lambda: len(bench.items) == 3)
    assert [(item.progress, item.total) for item in bench.items] == [(3, 10), (4, 10), (11, 20)]
    assert bench.view is not None
    assert [len(pull.layers) for pull in bench.view.pulls.values()] == [1, 2]
    assert [question.credentials for question in bench.questions] == [
        None, Credentials("me", "secret"),
    ]  # fmt: skip
    assert "secret" not in repr(bench.questions)
    assert (first.lease_id, second.lease_id) == (str(first_pull.folder), str(two.folder))
    first_pull.end()
    crio.commit(digest("a"), 10)
    crio.commit(digest("b"), 20)
    crio.commit_image("c" * 64, other)
    two.end()
    bench.watcher.forget(first)
    assert {ended.image for ended in bench.poll().ended} == {IMAGE, other}


def test_without_a_manifest_there_are_bytes_and_no_percentage(crio: FakeCrio) -> None:
    bench = Bench(crio)
    crio.say(f"Pulling image: {IMAGE}")
    pull = crio.pull()
    pull.write(1, 7, closed=True)
    pull.write(2, 3)
    bench.poll()
    assert bench.view is not None
    assert bench.view.sums.percent is None
    assert sum(item.progress for item in bench.items) == 10
    (pull.folder / "3").write_text('{"config": {}}')
    pull.write(2, 9, closed=True)
    crio.commit(digest("a"), 7)
    crio.commit(digest("b"), 9)
    crio.commit_image("c" * 64, IMAGE)
    bench.poll()
    bench.poll()
    assert len(bench.items) == 2
    pull.end()
    (ended,) = bench.poll().ended
    assert not ended.error
    assert [(item.phase, item.progress) for item in bench.items] == [
        (Phase.DONE, 7), (Phase.DONE, 9),
    ]  # fmt: skip


def test_pulls_that_may_be_of_either_image_are_unknown(crio: FakeCrio) -> None:
    bench = Bench(crio, {IMAGE: manifest(a=10), "a.io/other:2": manifest(b=20)})
    for number, reference in enumerate((IMAGE, "a.io/other:2")):
        crio.say(f"Pulling image: {reference}", number)
    pulls = [crio.pull(), crio.pull()]
    for pull in pulls:
        pull.write(1, 8)
    bench.poll()
    assert bench.view is not None
    assert not bench.view.pulls  # a name may come in a moment
    bench.poll_until(lambda: bench.items)
    assert set(bench.view.pulls) == {"unknown image (1)", "unknown image (2)"}
    assert not bench.questions
    pulls[0].end()
    (ended,) = bench.poll().ended
    assert ended.error
    pulls[1].write(1, 8, closed=True)
    bench.poll()
    crio.commit(digest("a"), 8)
    crio.commit_image("c" * 64, IMAGE)
    pulls[1].end()
    (ended,) = bench.poll().ended
    assert not ended.error


def test_an_image_that_only_one_pod_waits_for(crio: FakeCrio) -> None:
    crio.commit(digest("a"), 5)
    crio.commit_image("d" * 64, "a.io/sidecar:1")
    images = (PodImage("main", IMAGE), PodImage("side", "a.io/sidecar:1"))
    bench = Bench(crio, None, Pod("default", "web", "u1", "Pending", images, ()))
    crio.pull().write(1, 5)
    bench.poll()
    assert bench.view is not None
    (pull,) = bench.view.pulls.values()
    assert (pull.image, pull.pods) == (IMAGE, ("default/web",))


def test_crio_is_killed_and_comes_again(crio: FakeCrio) -> None:
    bench = Bench(crio)
    crio.say(f"Pulling image: {IMAGE}")
    crio.pull().write(1, 5)
    assert len(bench.poll().active) == 1
    crio.kill()
    Path(crio.path).unlink(missing_ok=True)
    with pytest.raises(ConnectError):
        bench.poll()
    crio.start()
    result = bench.poll()
    assert not result.active
    (ended,) = result.ended
    assert ended.error == "the pull ended without an image (0 of 1 layer seen complete)"
    crio.pull().write(1, 5)
    assert len(bench.poll().active) == 1


def test_without_root_one_line_says_so(crio: FakeCrio, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> str:
        raise PermissionError(pid)

    monkeypatch.setattr("pycrictl.pulls.sources.crio.files.root_of", refuse)
    with pytest.raises(PycrictlError, match="only root can see") as caught:
        Bench(crio).poll()
    assert caught.value.hint == "run as root on the node, or use pycrictl proxy"


@pytest.mark.parametrize(
    "form", ['level=info msg="{}" file="x" id={}', '{{"id":"{1}","level":"info","msg":"{0}"}}']
)
def test_which_pulls_the_log_knows(form: str) -> None:
    calls = [f"763c55fc-a0e6-4593-97e5-a0f4a387f1{number:02}" for number in range(3)]
    said = [
        (f"Pulling image: {IMAGE}", calls[0]), ("Pulling image: b:1", calls[1]),
        ("Image a not found", calls[2]), (f"Pulling image: {IMAGE}", calls[2]),
        ("Pulled image: b@sha256:1", calls[1]),
    ]  # fmt: skip
    lines = [JournalLine(float(at), "crio", form.format(*words)) for at, words in enumerate(said)]
    assert [(pull.reference, pull.since_s) for pull in pulls_in_log(lines)] == [(IMAGE, 3.0)]


# Matching files to layers, with correct sums while the match is unknown


def stored(**sizes: int) -> dict[str, StoredLayer]:
    return {
        digest(name): StoredLayer(digest(name), size, "2026-01-01T00:00:00Z")
        for name, size in sizes.items()
    }


def files(*sizes: int, closed: tuple[int, ...] = ()) -> list[BlobFile]:
    """Return files 1, 2 …, all open except those numbered in ``closed``."""
    return [BlobFile(n, size, n not in closed, 0.0) for n, size in enumerate(sizes, 1)]


def by_name(layers: FileLayers) -> dict[str, FileLayer]:
    return {layer.name: layer for layer in layers}


def update(
    layers: FileLayers, *seen: BlobFile, there: dict[str, StoredLayer] | None = None
) -> None:
    layers.update(seen, there or {}, 0.0)


def test_who_comes_late_knows_what_is_complete() -> None:
    layers = FileLayers(manifest(a=10, b=20, c=30, d=40).layers)
    update(layers, *files(20, 7, 40, closed=(1, 3)), there=stored(a=10, b=20))
    shown = by_name(layers)
    assert shown[digest("a")].phase is Phase.PRESENT
    assert shown["layer 2 of 4"].digest == digest("b")
    assert shown["layer 2 of 4"].phase is Phase.DONE  # its file shows that this pull fetched it
    assert shown["layer 3 of 4"].phase is Phase.DOWNLOADING
    assert shown["layer 4 of 4"].digest == digest("d")
    assert shown["layer 4 of 4"].phase is Phase.WAITING


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=12),
    st.integers(0, 2**32),
)
def test_any_pull(sizes: list[int], seed: int) -> None:
    """Names stay, bytes never decrease, sums hold at each poll, and the end is exact."""
    dice = random.Random(seed)
    image = {f"l{number}": size for number, size in enumerate(sizes)}
    there = {name: size for name, size in image.items() if dice.random() < 0.2}
    order = [name for name in image if name not in there]
    dice.shuffle(order)
    layers = FileLayers(manifest(**image).layers)
    now = {number: 0 for number, _ in enumerate(order, 1)}
    opened: set[int] = set()
    before: dict[str, int] = {}
    store = stored(**there)
    for _ in range(200):
        for number, name in enumerate(order, 1):
            if number not in opened and len(opened) < 6 + len(store) and dice.random() < 0.5:
                if number == 1 or number - 1 in opened:
                    opened.add(number)
            if number in opened:
                now[number] = min(now[number] + dice.randint(0, 9), image[name])
        seen = [
            BlobFile(number, now[number], now[number] < image[order[number - 1]], 0.0)
            for number in sorted(opened)
        ]
        layers.update(seen, store, 0.0)
        for number in opened:
            if now[number] == image[order[number - 1]] and dice.random() < 0.3:
                store |= stored(**{order[number - 1]: now[number]})
        progress = {layer.name: layer.progress for layer in layers}
        assert not before or progress.keys() == before.keys()
        assert all(progress[name] >= before.get(name, 0) for name in progress)
        assert sum(layer.size_bytes for layer in layers) == sum(sizes)
        assert all(layer.progress <= layer.size_bytes for layer in layers)
        assert sum(progress.values()) == sum(there.values()) + sum(file.size_bytes for file in seen)
        before = progress
    assert {layer.digest: layer.size_bytes for layer in layers} == {
        digest(name): size for name, size in image.items()
    }
    assert {layer.phase for layer in layers} <= {Phase.DONE, Phase.PRESENT}


# The lists of containers/storage, as podman and CRI-O write them

A = digest("a")


def entry(name: str, digest: str, size: int, **more: Any) -> dict[str, Any]:
    return {"id": name, "compressed-diff-digest": digest, "compressed-size": size, **more}


def put(root: Path, kind: str, document: object) -> None:
    path = root / f"overlay-{kind}s" / f"{kind}s.json"
    path.parent.mkdir(parents=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document))


@pytest.mark.parametrize(
    "document",
    [
        "", "{", "{}", "5", "[5, null, {}]", "[" * 100_000,
        [{"id": [], "compressed-diff-digest": 5}], [entry("1", "sha256:x", 5)],
        [entry("1", A, 5, flags=7) | {"compressed-size": "5"}],
    ],
    ids=str,
)  # fmt: skip
def test_odd_lists(tmp_path: Path, document: object) -> None:
    put(tmp_path, "layer", document)
    put(tmp_path, "image", document)
    storage = Storage(str(tmp_path))
    assert all(layer.size_bytes == 0 for layer in storage.layers().values())
    assert not [image for image in storage.images() if image.id != "1"]
