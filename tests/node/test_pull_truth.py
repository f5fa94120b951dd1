"""Whose pulls are shown on a plain containerd, under which names, and why they failed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pycrictl.cri.calls.client import CriClient
from pycrictl.errors import PullFailed
from pycrictl.kube.node_pods import NodePods
from pycrictl.logs import journal
from pycrictl.progress import node_watch
from pycrictl.progress.endings import Pace
from pycrictl.pulls.model import Phase, View
from tests.kube.apiserver import ApiServer, write_kubeconfig
from tests.proxy.program import Program
from tests.waiting import wait_until

from .images import Image
from .lab import MIB, Lab
from .test_commands import SLOW_S, run_slowly

PACE = Pace(0.05)

read_journal = partial(journal.read, timeout_s=20)
"""The journal, also where its program takes long to start."""


class Sink:
    def __init__(self) -> None:
        self.views: list[View] = []
        self.notes: list[str] = []

    def show(self, view: View) -> None:
        self.views.append(view)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def end(self, images: Collection[str]) -> None:
        pass

    @property
    def names(self) -> set[str]:
        return {item.image for view in self.views for item in view.items}


def add_pod(api: ApiServer, name: str, *images: str, waiting: str = "ContainerCreating") -> None:
    containers = [{"name": f"c{number}", "image": image} for number, image in enumerate(images)]
    state = {"waiting": {"reason": waiting, "message": "no"}}
    statuses = [{"name": one["name"], "state": state} for one in containers]
    api.pods["items"].append(
        {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
            "spec": {"nodeName": "n1", "containers": containers},
            "status": {"phase": "Pending", "containerStatuses": statuses},
        }
    )


@contextmanager
def watching(lab: Lab, pods: NodePods, pod: str = "", **more: Any) -> Iterator[Sink]:
    sink = Sink()
    failure: list[BaseException] = []

    def run() -> None:
        path = lab.node.endpoint.removeprefix("unix://")
        with CriClient(path, timeout_s=20) as client:
            try:
                knowledge = node_watch.Knowledge(pods=pods, **more)
                node_watch.watch(client, node_watch.WatchRequest(pod=pod), sink, PACE, knowledge)
            except PullFailed as exc:
                sink.notes.append(exc.message)
            except BaseException as exc:
                failure.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield sink
    finally:
        thread.join(100)
    assert not failure, failure
    assert not thread.is_alive()


def node_pods(api: ApiServer, root: Path) -> NodePods:
    write_kubeconfig(api.kubeconfig(inline=True), root)
    return NodePods(root=root, timeout_s=20)


def test_a_pods_own_pulls_under_the_names_it_uses(lab: Lab, api: ApiServer, tmp_path: Path) -> None:
    mine, other = (lab.image(name, 2 * MIB, MIB) for name in ("shop/web:1.4", "shop/other:1"))
    references = [lab.push(mine), lab.push(other)]
    add_pod(api, "web", references[0])
    add_pod(api, "other", references[1])
    lab.throttle.limit(2 * MIB)
    pods = [lab.node.kubelet.run_pod(name) for name in ("web", "other")]
    pulls = [
        lab.node.kubelet.start_pull(reference, pod)
        for reference, pod in zip(references, pods, strict=True)
    ]
    with watching(lab, node_pods(api, tmp_path), "default/web") as sink:
        for pull in pulls:
            pull.result(100)
    assert (sink.names, sink.notes) == ({references[0]}, [])
    shares = [view.totals.percent for view in sink.views if view.items]
    assert shares == sorted(shares, key=lambda share: share or 0.0)
    assert shares[-1] == 100.0
    assert all(
        (view.totals.percent == 100.0)
        == all(item.phase in (Phase.DONE, Phase.PRESENT) for item in view.items)
        for view in sink.views
        if view.items
    )
    final = {item.layer: item.progress for item in sink.views[-1].items}
    assert final == {layer.digest: layer.size_bytes for layer in mine.layers}
    began = [totals.began for totals in sink.views[-1].images.values()]
    assert all(began)


def write_journal(lab: Lab, folder: Path) -> None:
    """A journalctl that prints what the throwaway containerd has logged."""
    folder.mkdir()
    program = folder / "journalctl"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, re, datetime\n"
        f"for line in open({str(lab.node.log_path)!r}):\n"
        '    stamp = re.match(r\'time="([^"]+)"\', line)\n'
        "    if stamp:\n"
        "        at = datetime.datetime.fromisoformat(stamp[1][:26].rstrip('Z') + '+00:00')\n"
        "        print(json.dumps({'__REALTIME_TIMESTAMP': str(int(at.timestamp() * 1e6)),\n"
        "              '_SYSTEMD_UNIT': 'containerd.service', 'MESSAGE': line.rstrip()}))\n"
    )
    program.chmod(0o755)


def test_a_failure_before_the_first_byte(
    lab: Lab, api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_journal(lab, tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr("pycrictl.progress.failures.BACK_OFF_S", 100.0)  # not due before it is seen
    reference = f"{lab.throttle.host}/nosuch/missing:1"
    add_pod(api, "web", reference)
    lab.node.kubelet.run_pod("web")
    pull = lab.node.kubelet.start_pull(reference)
    assert pull.exception(100) is not None
    api.pods["items"].clear()
    add_pod(api, "web", reference, waiting="ErrImagePull")
    pods = node_pods(api, tmp_path)
    began_at = time.monotonic()
    with watching(lab, pods, "default/web", read_journal=read_journal) as sink:
        pass
    assert time.monotonic() - began_at < 30
    (item,) = sink.views[-1].items
    assert (item.image, item.phase, item.pod) == (reference, Phase.FAILED, "default/web")
    assert "not found" in item.error
    assert "; next try about " in item.error
    assert sink.notes[-1].startswith(f'the pull of "{reference}" failed: ')


def watched(
    lab: Lab, words: list[str], *wanted: Callable[[dict[str, Any]], object]
) -> list[dict[str, Any]]:
    """What the program says of pulls that are slow until it has said all that is wanted."""
    lines: list[dict[str, Any]] = []
    missing = [*wanted]
    words = [*words, "--progress", "json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        for line in run.stdout or ():
            lines.append(json.loads(line))
            missing = [one for one in missing if not one(lines[-1])]
            if not missing:
                lab.throttle.limit(None)
        assert run.stderr is not None
        assert (run.wait(60), run.stderr.read()) == (0, b"")
    return lines


def test_a_proxy_on_the_node_is_found_and_knows_better(
    lab: Lab, start: Callable[..., Program], command: list[str]
) -> None:
    """Through the runtime's own socket, and without a pod: names, pods, and who is ahead."""
    proxy = start("--max-parallel-image-pulls", "1")
    references = [lab.push(lab.image(f"shop/p{n}:1", 2 * MIB, MIB)) for n in range(3)]
    lab.throttle.limit(MIB / 2)
    pods = [proxy.kubelet.run_pod(name) for name in ("web", "batch")]
    pulls = [proxy.kubelet.start_pull(references[0], pods[0])]
    wait_until(lambda: lab.node.store.ingests())
    pulls.append(proxy.kubelet.start_pull(references[1], pods[1]))
    stranger = lab.node.kubelet.start_pull(references[2])
    words = ["image-pull-progress", "--no-kube", "--admin-socket", f"unix://{proxy.admin_path}"]
    waits, comes = (lambda line: line.get("queue_position")), (lambda line: "p2" in line["image"])
    lines = watched(lab, [*command, *words], waits, comes)
    for pull in (*pulls, stranger):
        pull.result(100)
    seen = {line["image"]: line.get("pod") for line in lines}
    assert seen[references[0]] == "default/web"
    assert seen[references[1]] == "default/batch"
    assert sum("shop/p2" in name for name in seen) == 1
    (queued,) = {line["behind"] for line in lines if line.get("queue_position")}
    assert queued == "default/web"
    final = {(line["image"], line["layer"]): line for line in lines if line.get("layer")}
    assert {line["phase"] for line in final.values()} <= {"done", "present"}
    one = subprocess.run(
        [*command, *words, "--progress", "plain", "default/batch"], capture_output=True, text=True
    )
    assert (one.returncode, "showing every pull" in one.stderr) == (0, False)


def test_the_command_with_the_kubelets_credential(lab: Lab, api: ApiServer, tmp_path: Path) -> None:
    write_kubeconfig(api.kubeconfig(inline=True), tmp_path)
    for folder in ("etc", "run", "proc/1", "proc/self"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    lab.node.kubelet.run_pod("web")
    pulled = lab.image("shop/cli:1", 2 * MIB, MIB)
    reference = lab.push(pulled)
    add_pod(api, "web", reference)
    lab.throttle.limit(pulled.layers_bytes / SLOW_S)
    pull = lab.node.kubelet.start_pull(reference)
    words = ["image-pull-progress", "--progress", "json", "default/web"]
    run = run_slowly(lab, "--host-root", str(tmp_path), "--debug", *words)
    pull.result(100)
    assert run.returncode == 0, run.stderr
    assert {json.loads(line)["image"] for line in run.stdout.splitlines()} == {reference}
    assert "PRIVATE" not in run.stderr


def broken(lab: Lab, name: str, seed: int) -> Image:
    """An image whose last layer is fetched whole, and is not what its config says."""
    first, last = lab.layout.random_layers([2 * MIB, MIB], seed=seed)
    last = replace(last, diff_id="sha256:" + "0" * 64)
    return lab.layout.image(name, [lab.base, first, last])


def test_a_pull_that_fails_after_its_last_byte_is_not_done(
    lab: Lab, api: ApiServer, tmp_path: Path
) -> None:
    reference = lab.push(broken(lab, "shop/broken:1", 660))
    lab.throttle.limit(2 * MIB)
    pull = lab.node.kubelet.start_pull(reference)
    with watching(lab, node_pods(api, tmp_path)) as sink:
        assert pull.exception(100) is not None
    # The last bytes of a layer may come, be unpacked in vain and be collected between two looks.
    assert sink.views[-1].totals.failed in (1, 2)
    assert sink.views[-1].totals.percent != 100
    (note,) = sink.notes
    assert re.search("the runtime made no image of them|the pull ended without an image", note)
    ranks = {Phase.DOWNLOADING: 0, Phase.WAITING: 1, Phase.EXTRACTING: 2, Phase.DONE: 3}
    for layer in {item.layer for item in sink.views[-1].items}:
        seen = [item for view in sink.views for item in view.items if item.layer == layer]
        phases = [ranks.get(one.phase, 3) for one in seen if one.progress == one.total > 0]
        assert phases == sorted(phases), (layer, phases)


def test_a_pull_of_ones_own_that_fails_after_its_last_byte_has_its_cause_once(lab: Lab) -> None:
    reference = lab.push(broken(lab, "shop/broken:2", 670))
    lab.throttle.limit(2 * MIB)
    ended = run_slowly(lab, "pull", "--progress", "plain", reference)
    assert ended.returncode == 1
    assert "all layers" not in ended.stderr
    assert ended.stderr.count("wrong diff id") == 1
    assert re.search(r"broken:2 .*failed", ended.stderr)
