"""Agents as shipped, in pods with their own networks, with and without the proxy on the node."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pycrictl.proxy import admin
from tests.cluster.kubectl.plugin import Plugin
from tests.e2e.node.images import Image
from tests.e2e.node.lab import MIB
from tests.e2e.node.programs import Session
from tests.support.cluster_agents import applied_from, plugin_beside
from tests.support.cluster_copies import Agent
from tests.support.cluster_pulls import pull_slowly
from tests.waiting import wait_until

from .cluster import Cluster
from .shipped import ADMIN, LIMIT, Node, node_of

LOOK_BYTES = 2 * MIB
"""How much two polls within a second may differ: the registry sends whole MiB."""

POLL_S = 2.0
"""How far a watch may lag behind a list: a list polls at once."""

SILENCE_S = 16.0
"""After this long without a request, an agent has stopped polling."""


@pytest.fixture(scope="module", params=["direct", "proxy"])
def node(request: pytest.FixtureRequest, shared_cluster: Cluster) -> Iterator[Node]:
    agent = Agent(shared_cluster)
    is_proxied = request.param == "proxy"
    with (
        node_of(shared_cluster, is_proxied=is_proxied) as node,
        applied_from(shared_cluster, "with-ca", agent.make),
    ):
        yield node


@pytest.fixture
def cluster(node: Node) -> Iterator[Cluster]:
    cluster = node.cluster
    yield cluster
    cluster.lab.registry.limit(None)
    words = ("delete", "pods", "--all", "--grace-period=1", "--wait=false")
    cluster.kubectl.good(*words)
    wait_until(lambda: not cluster.kubectl.good("get", "pods", "-o", "name"))


@pytest.fixture
def plugin(cluster: Cluster, tmp_path: Path) -> Plugin:
    return plugin_beside(cluster, tmp_path)


def pulls(cluster: Cluster) -> dict[str, dict[str, Any]]:
    items = cluster.kubectl.document("get", "imagepulls", "-A")["items"]
    return {item["spec"]["image"]: {"progressBytes": 0, **item["status"]} for item in items}


def loading(cluster: Cluster, images: list[Image]) -> set[tuple[str, str]]:
    """Return the layers that the runtime is downloading, as pairs of reference and digest."""
    ingests = cluster.lab.node.store.ingests().items()
    begun = {ref.partition("-")[2] for ref, (offset, _) in ingests if offset}
    return {
        (cluster.lab.reference(image), layer.digest)
        for image in images
        for layer in image.layers
        if layer.digest in begun
    }


def of_proxy(node: Node, kind: str) -> dict[str, int]:
    """Return the bytes of the images that the proxy lists as ``running`` or ``waiting``."""
    entries = node.status[kind] if node.proxy else ()
    return {entry["image"]: entry.get("bytes") or 0 for entry in entries}


def last_records(process: subprocess.Popen[str]) -> dict[str, dict[str, Any]]:
    """End a watch with ``--progress json``; return its last record of each image."""
    process.terminate()
    stdout, _ = process.communicate(timeout=60)
    records = [json.loads(line) for line in stdout.splitlines()]
    return {record["image"]: record for record in records if "image" in record}


def test_twelve_slow_pulls(node: Node, cluster: Cluster, plugin: Plugin) -> None:
    """The table, the plugin, the bars on the node, and the proxy must agree."""
    images = [
        cluster.image(f"t{node.seed + number}:1", node.seed + number, 9, 4) for number in range(12)
    ]
    references = [cluster.lab.reference(image) for image in images]
    cluster.lab.registry.limit(1.5e6)
    for number, reference in enumerate(references):
        cluster.run_pod(f"t{number}", reference)

    def are_running() -> bool:
        # containerd 2 downloads three layers at a time, across all images.
        statuses = pulls(cluster).values()
        return (
            len(statuses) == 12
            and sum(status["progressBytes"] > 2 * MIB for status in statuses) >= 3
        )

    wait_until(are_running)
    # containerd 1.6 tells bytes in steps of 1 MiB, which take half a minute at this rate.
    wait_until(lambda: loading(cluster, images))
    command = [*(sys.executable, "-m", "pycrictl", "-r", node.endpoint)]
    command += ["image-pull-progress", "--progress", "json"]
    by_node = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    by_plugin = plugin.start("-A", "--progress", "json")
    time.sleep(6)
    loaded, ran, waited = (
        loading(cluster, images),
        of_proxy(node, "running"),
        of_proxy(node, "waiting"),
    )
    time.sleep(POLL_S)
    before = of_proxy(node, "running")
    table = pulls(cluster)
    time.sleep(POLL_S)
    plugins, bars = last_records(by_plugin), last_records(by_node)
    after = pulls(cluster)

    assert set(table) == set(references)
    waiting = {
        image for image in table if table[image]["phase"] == after[image]["phase"] == "Queued"
    }
    runs = ("Pulling", "Extracting")
    seen = {
        image for image in table if table[image]["phase"] in runs and after[image]["phase"] in runs
    }
    # Pulls that the runtime or the proxy had as running or queued all the time must be shown so.
    # The runtime reports an image only once the download of one of its layers starts.
    all_the_time = {reference for reference, _ in loaded & loading(cluster, images)}
    assert all_the_time
    assert all_the_time | (ran.keys() & of_proxy(node, "running").keys()) <= seen, table
    assert waited.keys() & of_proxy(node, "waiting").keys() <= waiting, table
    for records in (plugins, bars):
        assert set(records) >= {*waiting, *seen}
        assert {image for image in waiting if records[image]["phase"] != "waiting"} == set()
        for image in seen:
            low = table[image]["progressBytes"] - LOOK_BYTES
            high = after[image]["progressBytes"] + LOOK_BYTES
            progress = records[image].get("image_progress", 0)
            assert low <= progress <= high, (image, records[image], table[image])
    # When a pull ends in between, another one starts.
    for image in before.keys() & seen:
        assert abs(before[image] - table[image]["progressBytes"]) <= LOOK_BYTES
    assert waiting <= waited.keys()
    assert not node.proxy or seen <= before.keys() | waited.keys()

    cluster.lab.registry.limit(None)
    for number in range(len(images)):
        wait_until(lambda name=f"t{number}": cluster.phase(name) == "Running")  # type: ignore[misc]  # mypy knows no defaults of lambdas


def test_the_first_look_after_a_silence(node: Node, cluster: Cluster) -> None:
    for number in range(4):
        pull_slowly(cluster, f"s{number}", node.seed + 100 + number, seconds=60)
    wait_until(lambda: len(pulls(cluster)) == 4)
    # containerd 2 reports an image only once the download of one of its layers starts.
    wait_until(lambda: any(pull["progressBytes"] > MIB for pull in pulls(cluster).values()))
    begun = {image for image, pull in pulls(cluster).items() if pull["progressBytes"]}
    time.sleep(SILENCE_S)
    statuses = pulls(cluster)
    assert [image for image in begun if statuses[image]["phase"] == "Waiting"] == []


def test_a_watch_counts_what_it_sees(node: Node, cluster: Cluster, plugin: Plugin) -> None:
    """Pulls that ended before are in no total; an image that another pod pulled is present."""
    old = pull_slowly(cluster, "old", node.seed + 120, seconds=5)
    wait_until(lambda: cluster.phase("old") == "Running")
    wait_until(lambda: {pull["phase"] for pull in pulls(cluster).values()} <= {"Succeeded"})
    began = time.monotonic()
    reference = pull_slowly(cluster, "new", node.seed + 121, seconds=15)
    follower = plugin.start("-A", "--progress", "plain")
    time.sleep(2)
    cluster.run_pod("again", old)
    wait_until(lambda: cluster.phase("new") == "Running")
    took_s = time.monotonic() - began
    stdout, stderr = follower.communicate(timeout=60)
    shown = stdout + stderr
    assert follower.returncode == 0, shown
    assert not re.search(rf"{re.escape(old)} .*done: .* in [\d.]+ ", shown), shown
    totals = re.findall(r"(?m)^total .*/([\d.]+) MiB .*layers", shown)
    assert {float(total) for total in totals} <= {46.1}, shown
    (done,) = re.findall(rf"{re.escape(reference)} .*done: .* in ([\d.]+) s", shown)
    # The end is told by the node, the answering agent and the plugin, each once a second.
    assert float(done) < took_s + 4


def test_bars_on_a_small_terminal(node: Node, cluster: Cluster, plugin: Plugin) -> None:
    """Users look for the image's name and tag, so these must not be cut off."""
    name = "a-rather-long-name-of-an-application-of-a-team"
    pull_slowly(cluster, name, node.seed + 130, seconds=30)
    program = f"{plugin.environ['PATH'].partition(':')[0]}/{plugin.name}"
    environ = [f"{name}={value}" for name, value in plugin.environ.items()]
    session = Session(["env", *environ, "TERM=xterm", program, name])  # 80x24
    session.wait_for(f"{name}{node.seed + 130}:1".encode())
    session.process.terminate()
    session.end()


def test_the_node_is_well(node: Node, cluster: Cluster) -> None:
    """This includes containerd 2 on cgroup v1, which warns that support for it will end."""
    done = node.run("doctor")
    assert "SERIOUS" not in done.stdout, done.stdout + done.stderr


def rows(cluster: Cluster, image: str) -> dict[str, Any]:
    return pulls(cluster).get(image, {})


def layers_of(status: dict[str, Any]) -> set[str]:
    return {layer["digest"] for layer in status.get("layers", ())}


def test_two_tags_of_one_repository(node: Node, cluster: Cluster) -> None:
    """A rollout: the second tag is pulled while the first one still is."""
    images = [cluster.image(f"pair{node.seed}:v{n}", node.seed + 140 + n, 6) for n in (1, 2)]
    references = [cluster.lab.reference(image) for image in images]
    cluster.lab.registry.limit(0.5e6)
    for number, reference in enumerate(references):
        cluster.run_pod(f"pair{number}", reference)
        time.sleep(3)
    own = [{layer.digest for layer in image.layers} for image in images]
    wait_until(lambda: all(layers_of(rows(cluster, reference)) for reference in references))
    for _ in range(5):
        for reference, digests in zip(references, own, strict=True):
            assert layers_of(rows(cluster, reference)) <= digests
        time.sleep(1)


def test_a_stall_on_a_slow_network(node: Node, cluster: Cluster) -> None:
    """The agent examines containerd's connections: a MiB would take minutes at this rate."""
    image = cluster.image(f"stalled{node.seed}:1", node.seed + 200, 4, 4, 4)
    reference = cluster.lab.reference(image)
    cluster.lab.registry.limit(30 * 1024)
    cluster.run_pod("stalled", reference)
    wait_until(lambda: rows(cluster, reference).get("phase") == "Pulling")
    time.sleep(15)  # longer than a download may be idle
    assert "stalledSeconds" not in rows(cluster, reference)
    cluster.lab.registry.limit(0)
    wait_until(lambda: rows(cluster, reference).get("stalledSeconds"))


def test_an_image_that_does_not_exist_beside_one_that_does(node: Node, cluster: Cluster) -> None:
    pull_slowly(cluster, "real", node.seed + 150, seconds=40)
    missing = cluster.lab.registry.host + f"/real{node.seed + 150}:nosuch"
    wait_until(lambda: pulls(cluster))
    cluster.run_pod("missing", missing)
    failed = ("Failed", "BackOff")
    wait_until(lambda: rows(cluster, missing).get("phase") in failed)
    for _ in range(20):
        printed = rows(cluster, missing)
        assert (printed["phase"] in failed, layers_of(printed)) == (True, set()), printed
        assert "not found" in printed["error"]
        time.sleep(1)
    told = node.run("why", "default/missing")
    assert "being pulled" not in told.stdout, told.stdout


def test_an_init_container_that_runs(node: Node, cluster: Cluster, plugin: Plugin) -> None:
    first, second = (cluster.image(f"init{node.seed}{n}:1", node.seed + 160 + n, 1) for n in (1, 2))
    first_image, second_image = (cluster.lab.reference(image) for image in (first, second))
    cluster.run_pod("init", first_image, second_image, init=first_image)
    wait_until(lambda: "running" in cluster.kubectl.good(
        "get", "pod", "init", "-o", "jsonpath={.status.initContainerStatuses[*].state}"
    ))  # fmt: skip
    time.sleep(POLL_S)
    assert "Waiting" not in {status["phase"] for status in pulls(cluster).values()}
    for words in (["init"], ["-A"]):
        began = time.monotonic()
        run = plugin.run(*words)
        assert (run.code, time.monotonic() - began < 30) == (0, True), run.stderr


def test_a_pod_that_is_deleted_during_its_pull(
    node: Node, cluster: Cluster, plugin: Plugin
) -> None:
    pull_slowly(cluster, "gone", node.seed + 170, seconds=60)
    wait_until(lambda: pulls(cluster))
    followers = [plugin.start("-A", "--progress", "plain"), plugin.start("gone")]
    time.sleep(4)
    cluster.kubectl.good("delete", "pod", "gone", "--grace-period=1", "--wait=false")
    cluster.lab.registry.limit(None)
    for follower in followers:
        stdout, stderr = follower.communicate(timeout=100)
        assert (follower.returncode, "failed" in stderr) == (0, False), stdout + stderr


def test_kubectl_waits_for_a_pull(node: Node, cluster: Cluster) -> None:
    pull_slowly(cluster, "waited", node.seed + 180, seconds=10)
    wait_until(lambda: pulls(cluster))
    words = "wait", "--for=condition=Pulled", "imagepull/waited.c0", "--timeout=60s"
    assert "condition met" in cluster.kubectl.good(*words)


def test_a_pull_behind_the_limit_says_so(node: Node, cluster: Cluster) -> None:
    if node.proxy is None:
        pytest.skip("there is no limit without a proxy")
    pull_slowly(cluster, "first", node.seed + 190, seconds=20)
    own = cluster.image(f"own{node.seed}:1", node.seed + 191, 1)
    admin.ask(ADMIN, "set-limit", timeout_s=10, limit=1)
    try:
        done = node.run("pull", "--progress", "plain", cluster.lab.reference(own))
    finally:
        admin.ask(ADMIN, "set-limit", timeout_s=10, limit=LIMIT)
    assert done.returncode == 0, done.stderr
    assert re.search(r"queued, 1st, behind default/first, starts in \w+", done.stderr), done.stderr
