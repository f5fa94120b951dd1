"""``kubectl why``: the causes that it finds in the API server's objects."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from pycrictl.cluster.kubectl.cluster_state import PARSERS, ClusterState
from pycrictl.cluster.kubectl.why import PAGE, needs_log
from pycrictl.diagnosis.findings import Finding, Missing
from pycrictl.kube.pods import Pod, parse_pod
from tests.cluster.agent import standing
from tests.cluster.agent.standing import Cluster
from tests.cluster.kubectl.cluster import NODE
from tests.cluster.kubectl.plugin import Plugin
from tests.kube.access import Grant
from tests.kube.apiserver import make_node_certificates

NOW_S = 1795387210.0
WAITING = {"waiting": {"reason": "ContainerCreating"}}
RUNNING = {"running": {"startedAt": "2026-11-22T10:00:05Z"}}
ENDED = {"terminated": {"exitCode": 3, "reason": "Error", "finishedAt": "2026-11-22T10:00:05Z"}}
AT = "2026-11-22T22:40:00Z"


def pod(state: Any = WAITING, status: Any = None, **changes: Any) -> dict[str, Any]:
    document = standing.pod("web", state=state, **changes)
    document["status"]["containerStatuses"][0] |= status or {}
    return document


def event(reason: str, message: str, field: str = "") -> dict[str, Any]:
    about = {"namespace": "default", "name": "web", "uid": "uid-default-web", "fieldPath": field}
    return {"reason": reason, "message": message, "lastTimestamp": AT, "involvedObject": about}


def pull(phase: str, **status: Any) -> dict[str, Any]:
    spec = {"podUID": "uid-default-web", "image": "registry.test/team/app:1"}
    return {"spec": spec, "status": {"phase": phase, **status}}


class Evidence(NamedTuple):
    events: Sequence[dict[str, Any]] = ()
    pulls: Sequence[dict[str, Any]] = ()
    logs: dict[str, tuple[str, ...]] = {}  # noqa: RUF012 - never changed


CRASHED = {"restartCount": 4, "lastState": ENDED}
KILLED = {
    "restartCount": 2,
    "lastState": {"terminated": {"exitCode": 137, "reason": "Error", "finishedAt": AT}},
}
BACK_OFF = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling"}}
CASES = {
    "pulling": (
        pod(),
        Evidence(
            pulls=[pull("Pulling", sums={"share": 0.12, "progress": 3 << 20, "total": 24 << 20})]
        ),
        "is being pulled, 12 %, 3.0 of 24.0 MiB",
    ),
    "queued": (pod(), Evidence(pulls=[pull("Queued", queuePosition=2)]), "is queued, 2nd"),
    "not-found": (
        pod(BACK_OFF),
        Evidence(pulls=[pull("BackOff", error="registry.test/team/app:1: not found")]),
        "the registry does not have it",
    ),
    "crash-loop": (
        pod({"waiting": {"reason": "CrashLoopBackOff"}}, CRASHED),
        Evidence(logs={"main": ("no such table",)}),
        "exit code 3, 4 restarts; its last line: no such table",
    ),
    "liveness without a word": (
        pod({"waiting": {"reason": "CrashLoopBackOff"}}, KILLED),
        Evidence([event("Unhealthy", "Liveness probe failed: ", "spec.containers{main}")]),
        "because its liveness probe fails: exit code 137",
    ),
}


def parsed(document: dict[str, Any]) -> Pod:
    parsed = parse_pod(document)
    assert parsed is not None
    return parsed


def findings(document: dict[str, Any], known: Evidence | None = None) -> list[Finding]:
    known, state = known or Evidence(), ClusterState()
    state.put("pods", document)
    for resource, documents in (("events", known.events), ("imagepulls", known.pulls)):
        for number, changed in enumerate(documents):
            state.put(resource, {**changed, "metadata": {"uid": str(number)}})
    state.listed = {*PARSERS} - {"nodes"}
    uid = document["metadata"]["uid"]
    state.logs = {(uid, name): lines for name, lines in known.logs.items()}
    (report,) = state.overview(NOW_S, (), is_whole=False).reports
    return list(report.findings)


@pytest.mark.parametrize("kind", CASES)
def test_a_cause(kind: str) -> None:
    document, known, said = CASES[kind]
    cause = findings(document, known)[0]
    assert cause.kind == kind.partition(" ")[0]
    assert said in cause.text
    assert "pycrictl" not in cause.advice


def beside(
    kind: str, state: Any, *, main: Any = RUNNING, phase: str = "Running", **spec: Any
) -> dict[str, Any]:
    """Return a pod with a second container, which is not ready, in the list ``kind``."""
    document = pod(main, {"ready": main == RUNNING}, phase=phase)
    document["spec"].setdefault(f"{kind}s", []).append({"name": "side", "image": "side:1", **spec})
    status = {"name": "side", "ready": False, "state": state}
    document["status"].setdefault(f"{kind}Statuses", []).append(status)
    return document


def exited(code: int, reason: str = "Error") -> Any:
    return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": AT}}


DONE = exited(0, "Completed")
SIDECAR = {"restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        (beside("ephemeralContainer", RUNNING), "healthy"),
        (beside("ephemeralContainer", exited(130)), "healthy"),
        (beside("initContainer", exited(143), main=DONE, phase="Succeeded", **SIDECAR), "finished"),
    ],
    ids=["debugging", "debugged", "finished"],
)
def test_a_container_beside_the_first(document: dict[str, Any], kind: str) -> None:
    assert [finding.kind for finding in findings(document)] == [kind]


def test_which_logs_are_wanted() -> None:
    assert list(needs_log(parsed(pod(RUNNING)))) == []
    assert list(needs_log(parsed(pod({"terminated": {"exitCode": 1}})))) == [("main", False)]
    assert list(needs_log(parsed(pod(WAITING, CRASHED)))) == [("main", True)]


@pytest.mark.parametrize("junk", [{}, {"metadata": 5}, {"metadata": {"name": "x"}, "status": [1]}])
def test_objects_of_odd_shape(junk: dict[str, Any]) -> None:
    state = ClusterState()
    for resource in PARSERS:
        state.put(resource, junk)
    state.put("events", {"involvedObject": 3})
    state.put("imagepulls", {"spec": []})
    assert state.overview(NOW_S, PARSERS, is_whole=True).pods == len(state.pods)


@pytest.fixture
def asked(run_folder: Path, tmp_path: Path) -> Iterator[Cluster]:
    with standing.standing(make_node_certificates(run_folder), tmp_path) as made:
        made.api.objects.add("", "nodes", NODE)
        yield made


def why(plugin: Plugin, cluster: Cluster) -> Plugin:
    plugin.environ["KUBECONFIG"] = str(cluster.kubectl("admin").kubeconfig)
    plugin.name = "kubectl-why"
    return plugin


def test_the_command(asked: Cluster, plugin: Plugin) -> None:
    asked.add_pod("web", state=BACK_OFF)
    asked.add_pod("ok", state=RUNNING, phase="Running")
    asked.api.objects.add(
        "", "events", {**event("Failed", "x"), "metadata": {"name": "e", "namespace": "default"}}
    )
    command = why(plugin, asked)
    done = command.run("web")
    assert done.code == 1
    assert done.stdout.startswith("default/web is not running: image")
    assert "agents" in done.stdout, "what it could not see is named"
    several = command.run()
    assert several.code == 1
    assert "default/web is not running: image" in several.stdout
    assert "default/ok" not in several.stdout
    well = command.run("ok")
    assert (well.code, well.stdout.startswith("default/ok is running")) == (0, True)
    document = json.loads(command.run("web", "-o", "json").stdout)
    assert document["cause"]["severity"] == "serious"
    gone = command.run("gone")
    assert gone.code == 1
    assert 'pods "gone" not found' in gone.stderr
    assert Missing("agents", "x").source in [
        source["source"] for source in document["facts"]["missing"]
    ]


def paths(cluster: Cluster, *kinds: str) -> list[str]:
    """Return the requests for lists of these resources, without watches."""
    asked = [urlsplit(path) for _, path, _ in cluster.api.asked]
    lists = [request for request in asked if "limit=" in request.query]
    return [request.path.rpartition("/")[2] for request in lists if request.path.endswith(kinds)]


def test_lists_come_in_pages(asked: Cluster, plugin: Plugin) -> None:
    for number in range(PAGE * 2 + 1):
        asked.add_pod(f"ok-{number}", state=RUNNING, phase="Running")
    asked.add_pod("zz", state=BACK_OFF)
    done = why(plugin, asked).run("-A")
    assert done.stdout.startswith("default/zz is not running: image")
    assert sorted(paths(asked, "/pods", "/nodes")) == ["nodes", "pods", "pods", "pods"]


def test_a_watch_lists_nothing_again(asked: Cluster, plugin: Plugin) -> None:
    asked.add_pod("web", state=BACK_OFF)
    asked.add_pod("api", state=BACK_OFF)
    command = why(plugin, asked)
    with command.start("-A", "--watch") as process:
        assert process.stdout is not None
        first = [process.stdout.readline() for _ in range(2)]
        assert {line.split()[0] for line in first} == {"default/api", "default/web"}
        lists = len(paths(asked, "s"))
        asked.api.objects.remove("", "pods", "default", "api")
        asked.api.objects.add("", "nodes", {**NODE, "status": {"conditions": []}})
        lines = iter(process.stdout.readline, "")
        assert next(line for line in lines if line.startswith("node n1 is not ready"))
        assert next(lines) == "  1 pod: default/web\n"
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert len(paths(asked, "s")) == lists == len(set(paths(asked, "s")))


def test_what_the_user_may_not_see_is_named(asked: Cluster, plugin: Plugin) -> None:
    asked.add_pod("web", state=RUNNING, phase="Running")
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "get"]}]
    asked.api.grants.append(Grant("jane", rules))
    plugin.environ["KUBECONFIG"] = str(asked.kubectl("jane").kubeconfig)
    plugin.name = "kubectl-why"
    done = plugin.run("-n", "default")
    assert (done.code, done.stderr) == (0, "")
    first, *unavailable = done.stdout.splitlines()
    assert first == "1 pod: no problem was found in the available sources"
    sources = ["nodes", "events", "agents", "persistentvolumeclaims", "workloads"]
    assert [line.split(": ")[1] for line in unavailable] == sources


def test_a_workload_without_pods(asked: Cluster, plugin: Plugin) -> None:
    failed = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}
    labels = {"matchLabels": {"app": "shop"}}
    document = {
        "kind": "Deployment",
        "apiVersion": "apps/v1",
        "metadata": {"name": "shop", "namespace": "default", "uid": "d1"},
        "spec": {"replicas": 2, "selector": labels},
        "status": {"conditions": [{**failed, "message": 'pods "x" is forbidden: exceeded quota'}]},
    }
    asked.api.objects.add("apps", "deployments", document)
    command = why(plugin, asked)
    said = "deployment default/shop has 0 of 2 pods: exceeded quota"
    for words in (["deploy/shop"], [], ["-A"]):
        done = command.run(*words)
        assert (done.code, done.stdout.startswith(said)) == (1, True), done
    overview = json.loads(command.run("deploy/shop", "-o", "json").stdout)
    assert (overview["pod"], overview["subject"]) == (None, "deployment default/shop")
    asked.add_pod("web", state=RUNNING, phase="Running")
    node = command.run("node/n1")
    assert (node.code, node.stdout.startswith("default/web is running: ")) == (0, True), node


def test_a_cron_job_stands_for_its_newest_job(asked: Cluster, plugin: Plugin) -> None:
    owner = {"controller": True, "kind": "CronJob", "name": "nightly"}
    failed = {"type": "Failed", "status": "True", "message": "Job has reached its limit"}
    objects = asked.api.objects
    metadata = {"namespace": "default", "creationTimestamp": AT}
    objects.add(
        "batch", "cronjobs", {"kind": "CronJob", "metadata": {**metadata, "name": "nightly"}}
    )
    for name, at, conditions in (("n-1", AT, [failed]), ("n-2", AT.replace("22T", "23T"), [])):
        document = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {**metadata, "name": name, "uid": name, "creationTimestamp": at}
            | {"ownerReferences": [owner]},
            "spec": {"selector": {"matchLabels": {"job-name": name}}},
            "status": {"conditions": conditions, "active": 1, "ready": 1},
        }
        objects.add("batch", "jobs", document)
    command = why(plugin, asked)
    well = command.run("cronjob/nightly")
    assert (well.code, well.stdout) == (0, "job default/n-2 has 1 of 1 pods ready\n"), well
    document["status"] = {"conditions": [failed]}
    objects.add("batch", "jobs", document)
    for words in (["cronjob/nightly"], []):
        sick = command.run(*words)
        assert (sick.code, sick.stdout.startswith("job default/n-2 has failed: ")) == (1, True), (
            sick
        )
        assert "n-1" not in sick.stdout
