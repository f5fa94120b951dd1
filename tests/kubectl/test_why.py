"""``kubectl why``: the causes that it finds in the API server's objects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pycrictl.diagnosis.findings import Missing, Weight
from pycrictl.diagnosis.pod import diagnose
from pycrictl.foreign import moment
from pycrictl.kubectl.why import Evidence, facts_of, for_cluster, needs_log
from tests.agent import standing
from tests.agent.standing import Cluster
from tests.kube.apiserver import make_node_certificates
from tests.kubectl.plugin import Plugin

NOW_S = 1795387210.0
WAITING = {"waiting": {"reason": "ContainerCreating"}}
RUNNING = {"running": {"startedAt": "2026-11-22T10:00:05Z"}}
ENDED = {"terminated": {"exitCode": 3, "reason": "Error", "finishedAt": "2026-11-22T10:00:05Z"}}
AT = "2026-11-22T22:40:00Z"
PROBED_S = moment(AT) + 60


def pod(state: Any = WAITING, status: Any = None, **changes: Any) -> dict[str, Any]:
    found = standing.pod("web", state=state, **changes)
    found["status"]["containerStatuses"][0] |= status or {}
    return found


def event(reason: str, message: str, field: str = "") -> dict[str, Any]:
    about = {"namespace": "default", "name": "web", "uid": "uid-default-web", "fieldPath": field}
    return {"reason": reason, "message": message, "lastTimestamp": AT, "involvedObject": about}


def pull(phase: str, **status: Any) -> dict[str, Any]:
    spec = {"podUID": "uid-default-web", "image": "registry.test/team/app:1"}
    return {"spec": spec, "status": {"phase": phase, **status}}


def unscheduled() -> dict[str, Any]:
    found = pod(node="")
    found["status"] = {
        "phase": "Pending",
        "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            | {"message": "0/3 nodes are available: 3 Insufficient cpu."}
        ],
    }
    return found


CRASHED = {"restartCount": 4, "lastState": ENDED}
KILLED = {
    "restartCount": 2,
    "lastState": {"terminated": {"exitCode": 137, "reason": "Error", "finishedAt": AT}},
}
BACK_OFF = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling"}}
NO_VOLUME = 'MountVolume.SetUp failed for volume "c" : configmap "x" not found'
CASES = {
    "unscheduled": (unscheduled(), Evidence(), "0/3 nodes are available: 3 Insufficient cpu."),
    "volume": (
        pod(),
        Evidence([event("FailedMount", NO_VOLUME)]),
        'volume "c" cannot be mounted: configmap "x" not found',
    ),
    "cni": (
        pod(),
        Evidence(
            [
                event(
                    "FailedCreatePodSandBox",
                    "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup"
                    ' network for sandbox "0f": plugin type="bridge" failed (add): no IP addresses',
                )
            ]
        ),
        "no IP addresses",
    ),
    "pulling": (
        pod(),
        Evidence(
            pulls=[pull("Pulling", sums={"share": 0.12, "progress": 3 << 20, "total": 24 << 20})]
        ),
        "is being pulled, 12 %, 3.0 of 24.0 MiB",
    ),
    "queued": (pod(), Evidence(pulls=[pull("Queued", queuePosition=2)]), "is queued, 2nd in line"),
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
    "out-of-memory": (
        pod({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}),
        Evidence(),
        "was OOM-killed: it exceeded its memory limit",
    ),
    "liveness": (
        pod({"waiting": {"reason": "CrashLoopBackOff"}}, KILLED),
        Evidence([event("Unhealthy", "Liveness probe failed: HTTP 503", "spec.containers{main}")]),
        "as its liveness probe fails (HTTP 503)",
    ),
    "liveness without a word": (
        pod({"waiting": {"reason": "CrashLoopBackOff"}}, KILLED),
        Evidence([event("Unhealthy", "Liveness probe failed: ", "spec.containers{main}")]),
        "as its liveness probe fails: exit code 137",
    ),
}


@pytest.mark.parametrize("kind", CASES)
def test_a_cause(kind: str) -> None:
    document, known, said = CASES[kind]
    found = facts_of(document, known, NOW_S)
    assert found is not None
    cause = for_cluster(diagnose(found)[0], found, "n1")
    assert cause.kind == kind.partition(" ")[0]
    assert said in cause.text
    assert "pycrictl" not in cause.advice or cause.advice.startswith("on node n1: ")


def test_a_pod_that_runs() -> None:
    found = facts_of(pod(RUNNING, {"ready": True}, phase="Running"), Evidence(), NOW_S)
    assert found is not None
    assert [one.weight for one in diagnose(found)] == [Weight.NOTE]


def beside(
    kind: str, state: Any, *, main: Any = RUNNING, phase: str = "Running", **spec: Any
) -> dict[str, Any]:
    """Return a pod with a second container, which is not ready, in the list ``kind``."""
    found = pod(main, {"ready": main == RUNNING}, phase=phase)
    found["spec"].setdefault(f"{kind}s", []).append({"name": "side", "image": "side:1", **spec})
    status = {"name": "side", "ready": False, "state": state}
    found["status"].setdefault(f"{kind}Statuses", []).append(status)
    return found


def exited(code: int, reason: str = "Error") -> Any:
    return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": AT}}


DONE = exited(0, "Completed")
SIDECAR = {"restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        (beside("ephemeralContainer", RUNNING), "healthy"),
        (beside("ephemeralContainer", exited(130)), "healthy"),
        (beside("container", RUNNING), "probe"),
        (beside("initContainer", RUNNING, main=WAITING, phase="Pending"), "unknown"),
        (beside("initContainer", RUNNING, **SIDECAR), "probe"),
        (beside("initContainer", exited(143), main=DONE, phase="Succeeded", **SIDECAR), "finished"),
    ],
    ids=["debugging", "debugged", "not ready", "initializing", "sidecar not ready", "finished"],
)
def test_a_container_beside_the_first(document: dict[str, Any], kind: str) -> None:
    found = facts_of(document, Evidence(), NOW_S)
    assert found is not None
    assert [one.kind for one in diagnose(found)] == [kind]


@pytest.mark.parametrize(("is_ready", "kind"), [(True, "healthy"), (False, "probe")])
def test_an_event_of_a_readiness_probe(is_ready: bool, kind: str) -> None:
    failed = event("Unhealthy", "Readiness probe failed: HTTP 503", "spec.containers{main}")
    document = pod(RUNNING, {"ready": is_ready}, phase="Running")
    found = facts_of(document, Evidence([failed, failed]), PROBED_S)
    assert found is not None
    (cause,) = diagnose(found)
    assert cause.kind == kind
    assert is_ready or "readiness probe fails (at least once in the last 5 minutes)" in cause.text


def test_which_logs_are_wanted() -> None:
    assert list(needs_log(pod(RUNNING))) == []
    assert list(needs_log(pod({"terminated": {"exitCode": 1}}))) == [("main", False)]
    assert list(needs_log(pod(WAITING, CRASHED))) == [("main", True)]


@pytest.mark.parametrize("junk", [{}, {"metadata": 5}, {"metadata": {"name": "x"}, "status": [1]}])
def test_what_is_no_pod(junk: dict[str, Any]) -> None:
    found = facts_of(junk, Evidence([{"involvedObject": 3}], [{"spec": []}]), NOW_S)
    assert found is None or found.name == "x"


@pytest.fixture
def asked(run_folder: Path, tmp_path: Path) -> Iterator[Cluster]:
    with standing.standing(make_node_certificates(run_folder), tmp_path) as made:
        made.api.objects.replace("", "events", {"items": []})
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
    one = command.run("web")
    assert one.code == 1
    assert one.stdout.startswith("default/web is not running: image")
    assert "agents" in one.stdout, "what it could not see is named"
    several = command.run()
    assert several.code == 1
    assert "default/web is not running: image" in several.stdout
    assert "default/ok" not in several.stdout
    well = command.run("ok")
    assert (well.code, well.stdout.startswith("default/ok is running")) == (0, True)
    found = json.loads(command.run("web", "-o", "json").stdout)
    assert found["cause"]["severity"] == "serious"
    gone = command.run("gone")
    assert gone.code == 1
    assert 'pods "gone" not found' in gone.stderr
    assert Missing("agents", "x").source in [each["source"] for each in found["facts"]["missing"]]
