"""Whose pulls are shown on a plain containerd, under which names, and why they failed."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pycrictl.pulls.sources.endings import Pace
from tests.kube.apiserver import ApiServer, write_kubeconfig
from tests.proxy.program import Program
from tests.support.journals import add_pod
from tests.support.slow_pulls import SLOW_S, run_slowly
from tests.waiting import wait_until

from .images import Image
from .lab import MIB, Lab

PACE = Pace(0.05)


def test_a_pods_own_pulls_with_the_kubelets_credential(
    lab: Lab, api: ApiServer, tmp_path: Path
) -> None:
    """They are shown under the names that the pod uses, and pulls of other pods are not shown."""
    write_kubeconfig(api.kubeconfig(inline=True), tmp_path)
    for folder in ("etc", "run", "proc/1", "proc/self"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    mine, other = (lab.image(name, 2 * MIB, MIB) for name in ("shop/web:1.4", "shop/other:1"))
    references = [lab.push(mine), lab.push(other)]
    lab.registry.limit(mine.layers_bytes / SLOW_S)
    pulls = []
    for name, reference in zip(("web", "other"), references, strict=True):
        add_pod(api, name, reference)
        pulls.append(lab.node.kubelet.start_pull(reference, lab.node.kubelet.run_pod(name)))
    words = ["image-pull-progress", "--progress", "json", "default/web"]
    run = run_slowly(lab, "--host-root", str(tmp_path), "--debug", *words)
    assert run.returncode == 0, run.stderr
    assert "PRIVATE" not in run.stderr
    ways: dict[str, list[int]] = {layer.digest: [0] for layer in mine.layers}
    for record in map(json.loads, run.stdout.splitlines()):
        assert record["image"] == references[0]
        ways[record["layer"]].append(record["progress"])
    assert all(way == sorted(way) for way in ways.values()), ways
    assert [way[-1] for way in ways.values()] == [layer.size_bytes for layer in mine.layers]
    for pull in pulls:
        pull.result(100)


def watched(
    lab: Lab, words: list[str], *wanted: Callable[[dict[str, Any]], object]
) -> list[dict[str, Any]]:
    """Return the program's records; pulls are slow until each of ``wanted`` has matched one."""
    lines: list[dict[str, Any]] = []
    missing = [*wanted]
    words = [*words, "--progress", "json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        for line in run.stdout or ():
            lines.append(json.loads(line))
            missing = [is_told for is_told in missing if not is_told(lines[-1])]
            if not missing:
                lab.registry.limit(None)
        assert run.stderr is not None
        assert (run.wait(60), run.stderr.read()) == (0, b"")
    return lines


def test_a_proxy_on_the_node_is_found_and_knows_better(
    lab: Lab, start: Callable[..., Program], command: list[str]
) -> None:
    """Its names, pods and places in line are shown even via the runtime's socket, without a pod."""
    proxy = start("--max-parallel-image-pulls", "1")
    references = [lab.push(lab.image(f"shop/p{n}:1", 2 * MIB, MIB)) for n in range(3)]
    lab.registry.limit(MIB / 2)
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
    done = subprocess.run(
        [*command, *words, "--progress", "plain", "default/batch"], capture_output=True, text=True
    )
    assert (done.returncode, "showing every pull" in done.stderr) == (0, False)


def broken(lab: Lab, name: str, seed: int) -> Image:
    """Make an image whose last layer can be fetched whole, but does not match the config."""
    first, last = lab.layout.random_layers([2 * MIB, MIB], seed=seed)
    last = replace(last, diff_id="sha256:" + "0" * 64)
    return lab.layout.image(name, [lab.base, first, last])


def test_a_pull_that_fails_after_its_last_byte_is_not_done(lab: Lab, command: list[str]) -> None:
    reference = lab.push(broken(lab, "shop/broken:1", 660))
    lab.registry.limit(MIB // 4)
    pull = lab.node.kubelet.start_pull(reference)
    words = [*command, "image-pull-progress", "--progress", "json", "--interval", "0.1"]
    wait_until(lab.node.store.ingests)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        first = run.stdout.readline()  # it watches the pull
        lab.registry.limit(2 * MIB)
        lines = [first, *run.stdout]
    assert pull.exception(100) is not None
    assert run.returncode == 1
    last = {record["layer"]: record["phase"] for record in map(json.loads, lines)}
    assert "failed" in last.values()


def test_a_pull_of_ones_own_that_fails_after_its_last_byte_has_its_cause_once(lab: Lab) -> None:
    reference = lab.push(broken(lab, "shop/broken:2", 670))
    lab.registry.limit(2 * MIB)
    ended = run_slowly(lab, "pull", "--progress", "plain", reference)
    assert ended.returncode == 1
    assert "all layers" not in ended.stderr
    assert ended.stderr.count("wrong diff id") == 1
    assert re.search(r"broken:2 .*failed", ended.stderr)
