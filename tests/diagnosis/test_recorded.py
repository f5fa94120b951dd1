"""The first cause of each pod, node and workload that was recorded on a real cluster."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from pycrictl.cluster.kubectl.cluster_state import PARSERS, ClusterState
from pycrictl.diagnosis.causes import CAUSES, Side
from pycrictl.diagnosis.error_causes import PULL_CAUSES
from pycrictl.diagnosis.facts import PodFacts
from pycrictl.diagnosis.findings import Weight
from pycrictl.diagnosis.pod import Overview, document_of, report, survey_document
from pycrictl.kube.cluster_objects import parse_node
from pycrictl.kube.node_pods import NodePods
from pycrictl.kube.pods import parse_pod
from pycrictl.show.diagnosis_text import write_pod, write_pods
from tests.cli.run import Run
from tests.diagnosis.recordings import Document, recording
from tests.fakecri.server import FakeServer
from tests.kube.apiserver import NODE, ApiServer, make_node_certificates, serve, write_kubeconfig
from tests.support.findings import NOISE

Why = Callable[..., Run]

CAUSE = {
    "ok": ("healthy", "is running: 1 container, for "),
    "done": ("finished", "has finished: exit code 0"),
    "recovered": ("healthy", "is running"),
    "restarted-0": ("healthy", "is running"),
    "restarted-1": ("healthy", "is running"),
    "restarted-137": ("healthy", "is running"),
    "restarted-255": ("healthy", "is running"),
    "restarted-plain": ("healthy", "is running"),
    "host-port": ("healthy", "is running"),
    "quota": ("healthy", "is running"),
    "well": ("healthy", "is running"),
    "good": ("finished", "has finished"),
    "no-tag": ("not-found", '/busybox:nosuch": the registry does not have it ('),
    "registry-down": ("registry-down", "connection refused"),
    "secret-none": ("unauthorized", "refuses access, and the pod has no pull secret ("),
    "secret-absent": ("unauthorized", "and the pod's pull secret regcred-absent does not exist ("),
    "secret-refused": ("unauthorized", "refuses the credentials in pull secret regcred ("),
    "invalid-name": ("invalid-name", '"Shop/Web:1": its name is invalid: "Shop" has upper-case'),
    "never": ("never-pulled", "it is not on the node, and its pull policy is Never"),
    "init-image": ("not-found", "/busybox:nosuch2"),
    "stands-still": ("not-found", "/busybox:nosuch3"),
    "wrong-command": ("bad-command", '"/no/such/program": stat /no/such/program: no such file'),
    "no-exec": ("bad-command", '"/etc": permission denied'),
    "bad-mount-path": ("start-error", 'container "app" cannot be started'),
    "crash": ("crash-loop", 'container "app" keeps crashing: exit code 3, '),
    "crash-127": ("crash-loop", "exit code 127 (a command was not found), "),
    "crash-segv": ("crash-loop", "exit code 1"),
    "message": ("crash-loop", "; its termination message: config: key db.url is missing"),
    "fallback": ("crash-loop", "panic: no database"),
    "on-failure": ("crash-loop", "exit code 6"),
    "two-containers": ("crash-loop", 'container "side" keeps crashing: exit code 1'),
    "init-crash": ("crash-loop", 'init container "migrate" keeps crashing: exit code 2'),
    "sidecar-crash": ("crash-loop", 'sidecar "mesh" keeps crashing: exit code 3'),
    "fails-once": ("crashed", 'container "app" has ended: exit code 5'),
    "fails": ("crashed", "exit code 5"),
    "report": ("crashed", "exit code 3"),
    "exit-0": ("keeps-ending", "keeps ending with exit code 0, and its restartPolicy is Always"),
    "exit-0-message": ("keeps-ending", "; its termination message: all done"),
    "oom": ("out-of-memory", "was OOM-killed: it exceeded its memory limit"),
    "liveness": (
        "liveness",
        "because its liveness probe fails (deadlocked): exit code 137 (SIGKILL)",
    ),
    "startup": ("liveness", "because its startup probe fails (still loading)"),
    "post-start": ("post-start", "because its postStart hook fails"),
    "readiness": ("probe", 'the readiness probe of container "app" fails (db not reachable)'),
    "readiness-http": ("probe", "connect: connection refused)"),
    "readiness-silent": ("probe", 'the readiness probe of container "app" fails'),
    "unready": ("probe", "fails (no license)"),
    "sidecar-startup": ("probe", 'startup probe of sidecar "mesh" fails (mesh: no certificate)'),
    "init-forever": ("init-running", 'init container "wait-for-db" has been running for '),
    "gate-readiness": ("readiness-gate", "shop.example/registered"),
    "no-configmap": ("volume", 'volume "v" cannot be mounted: configmap "settings" not found'),
    "no-secret": ("volume", 'volume "v" cannot be mounted: secret "tls" not found'),
    "host-path": ("volume", "/no/such is not a directory"),
    "no-configmap-env": ("config", 'cannot be made: configmap "settings" not found'),
    "no-configmap-key": ("config", "couldn't find key absent in ConfigMap default/present"),
    "no-secret-env": ("config", 'secret "tls" not found'),
    "non-root": ("config", "container has runAsNonRoot and image will run as root"),
    "no-runtime-class": ("runtime-class", 'no runtime for "kata" is configured'),
    "empty-dir-full": ("evicted", 'Usage of EmptyDir volume "v" exceeds the limit "5Mi"'),
    "deadline": ("deadline", "it exceeded its activeDeadlineSeconds"),
    "sysctl": ("rejected", "the kubelet rejects it (SysctlForbidden)"),
    "node-affinity": ("rejected", "(NodeAffinity)"),
    "out-of-cpu": ("rejected", "(OutOfcpu)"),
    "host-port-2": ("rejected", "(NodePorts)"),
    "host-port-taken": ("rejected", "(NodePorts)"),
    "needs-cpu": ("unscheduled", "no node takes it: 0/1 nodes are available: 1 Insufficient cpu"),
    "needs-gpu": ("unscheduled", "1 Insufficient nvidia.com/gpu"),
    "needs-label": ("unscheduled", "1 node(s) didn't match Pod's node affinity/selector"),
    "unscheduled": ("unscheduled", "1 Insufficient cpu"),
    "no-scheduler": ("unscheduled", 'its scheduler, "other", has not scheduled it yet'),
    "gated": ("gated", "scheduling gates are removed: shop.example/quota"),
    "no-claim": ("no-claim", 'persistentvolumeclaim "nope" not found'),
    "claim-pending": ("claim-unbound", "it waits for volumes"),
    "claims": ("claim-unbound", "it waits for volumes"),
    "finalizer": ("finalizer", "waits for its finalizers: shop.example/archive"),
    "ignores-term": ("terminating", 'still running: container "app"'),
    "pre-stop-hangs": ("terminating", "with a grace period of 1h0m0s"),
}
"""Kind and part of the first line, by the name of the pod or of its workload."""

WITHOUT_API = {
    "deadline": "sandbox-gone",
    "gate-readiness": "healthy",
    "ignores-term": "healthy",
    "init-forever": "healthy",
    "pre-stop-hangs": "healthy",
    "secret-none": "unauthorized",
}
"""What the runtime and the journal alone tell, where it is less."""


def name_of(pod: Document) -> str:
    metadata = pod["metadata"]
    return str(metadata.get("labels", {}).get("app", metadata["name"]))


RESOURCES = {
    "Pod": "pods",
    "Event": "events",
    "Node": "nodes",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "Deployment": "deployments",
    "ReplicaSet": "replicasets",
    "StatefulSet": "statefulsets",
    "DaemonSet": "daemonsets",
    "Job": "jobs",
    "CronJob": "cronjobs",
}


def look_at(name: str) -> Overview:
    known, state = recording(name), ClusterState()
    for document in known.of(*RESOURCES):
        state.put(RESOURCES[document["kind"]], document)
    state.listed = {*PARSERS}
    return state.overview(known.at_s, PARSERS, is_whole=True)


def test_each_pod_from_the_cluster() -> None:
    names = {
        str(parse_pod(document)): name_of(document) for document in recording("cluster").of("Pod")
    }
    overview = look_at("cluster")
    said = {
        names[report.facts.full_name]: (report.cause.kind, report.cause.text)
        for report in overview.reports
        if report.facts.full_name in names
    }
    check(said)
    calm = {name for name, cause in CAUSE.items() if cause[0] in ("healthy", "finished")}
    assert said.keys() == CAUSE.keys() - calm
    assert overview.pods == len(names)
    assert not [report for report in overview.reports if "pycrictl " in report.cause.advice]


OTHERS = {
    "deployment quota/quota": "has 1 of 3 pods: exceeded quota: few, requested: pods=1",
    "replicaset quota/bare": "has 0 of 2 pods: exceeded quota: few",
    "deployment secure/web": 'has 0 of 2 pods: violates PodSecurity "restricted:latest"',
    "statefulset secure/db": 'has 0 of 2 pods: violates PodSecurity "restricted:latest"',
    "daemonset secure/agent": 'has 0 of 1 pods: violates PodSecurity "restricted:latest"',
    "job secure/migrate": 'has 0 of 1 pods: violates PodSecurity "restricted:latest"',
    "job secure/nightly": 'has 0 of 1 pods: violates PodSecurity "restricted:latest"',
    "deployment hooked/hooked": 'failed calling webhook "check.shop.example"',
    "deployment shop/no-account": 'serviceaccount "robot" not found',
    "deployment limits/big": "maximum memory usage per Container is 64Mi, but limit is 1Gi",
    "deployment shop/stands-still": "has a rollout that is stuck: 0 of 2 pods are ready",
    "deployment shop/unready": "has a rollout that is stuck: 0 of 1 pods are ready",
    "deployment shop/paused": "is paused, and has 0 of 1 pods",
    "job shop/fails": "has failed: Job has reached the specified backoff limit",
    "job shop/report": "has failed",
    "job shop/late": "has failed: Job was active longer than specified deadline",
    "persistentvolumeclaim default/orphan": 'storageclass.storage.k8s.io "fast" not found',
}


def test_workloads_and_claims() -> None:
    """Each is named once: a CronJob by its newest Job, a Deployment for its ReplicaSet."""
    reports = [
        report for report in look_at("cluster").reports if not isinstance(report.facts, PodFacts)
    ]
    said = {re.sub(r"-\d{8}$", "", report.facts.full_name): report.cause.text for report in reports}
    assert len(said) == len(reports)
    assert {name: OTHERS[name] in text for name, text in said.items()} == dict.fromkeys(
        OTHERS, True
    )


NODES = {
    "cluster-ghost": [
        ("node ghost", "is not ready, for 5 seconds: Kubelet never posted node status"),
        *((f"default/on-ghost-{n}", "is on node ghost, which is not ready, ") for n in (1, 2, 3)),
    ],
    "cluster-node-deleted": [
        ("node ghost", "does not exist, but pods are still on it"),
        *((f"default/on-ghost-{n}", "its node, ghost, does not exist any more") for n in (1, 2, 3)),
    ],
    "cluster-kubelet-stopped": [
        ("node vm", "is not ready, for 7 seconds: Kubelet stopped posting node status"),
        *((f"default/{name}", "is on node vm, which") for name in ("crash", "ok", "on-stopped")),
        *((f"shop/well-596855dc45-{end}", "is on node vm, which") for end in ("8l45z", "wvxrr")),
    ],
    "cluster-pressure": [
        ("default/under-pressure", "untolerated taint(s) (vm has DiskPressure)"),
        ("default/under-pressure-here", "evicted it: Pod was rejected: The node had condition"),
        ("node vm", "has DiskPressure: it takes no new pods"),
    ],
    "cluster-tainted": [("default/untolerated", "(vm has team=db:NoSchedule)")],
    "cluster-cordoned": [("default/cordoned", "1 node(s) were unschedulable (vm is cordoned)")],
    "cluster-no-network": [
        ("default/no-network", 'cannot be set up: plugin type="nosuch" failed (add)'),
    ],
}


@pytest.mark.parametrize("name", NODES)
def test_nodes(name: str) -> None:
    reports = {report.facts.full_name: report.cause.text for report in look_at(name).reports}
    assert {whose: said in reports[whose] for whose, said in NODES[name]} == dict.fromkeys(
        reports, True
    )


def test_pods_of_a_node_that_is_not_ready_are_below_it() -> None:
    out = io.StringIO()
    write_pods(survey_document(look_at("cluster-kubelet-stopped")), out)
    first, second, *more = out.getvalue().splitlines()
    assert first.startswith("node vm is not ready, for 7 seconds: ")
    assert second == (
        "  5 pods: default/crash, default/ok, default/on-stopped, shop/well-596855dc45-8l45z,"
        " shop/well-596855dc45-wvxrr"
    )
    assert not more


@pytest.mark.parametrize("name", ["cluster", *NODES])
def test_texts_for_people_from_the_cluster(name: str) -> None:
    overview, out = look_at(name), io.StringIO()
    write_pods(survey_document(overview), out)
    for shown in overview.reports:
        write_pod(document_of(shown), out)
    assert overview.reports
    assert not [line for line in out.getvalue().splitlines() if re.search(NOISE, line)]


def check(said: Mapping[str, tuple[str, str]]) -> None:
    """Check the kinds, the words and the form of causes."""
    wrong = {
        name: cause
        for name, cause in said.items()
        if cause[0] != CAUSE[name][0] or CAUSE[name][1] not in cause[1]
    }
    assert not wrong
    texts = [text for _, text in said.values()]
    assert not [text for text in texts if "  " in text or "{" in text or "None" in text]


@pytest.fixture
def api(run_folder: Path) -> Iterator[ApiServer]:
    with serve(make_node_certificates(run_folder)) as server:
        yield server


@pytest.fixture
def node(fake: FakeServer, api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Why:
    """Return a function that runs ``why`` on the recorded node."""
    known = recording("node")
    root, programs = tmp_path / "root", tmp_path / "bin"
    known.offer(fake)
    known.write_files(root)
    pods = [
        {**document, "spec": {**document["spec"], "nodeName": NODE}} for document in known.of("Pod")
    ]
    (node,) = known.of("Node")
    api.pods = {"items": pods}
    api.objects.replace("", "nodes", {"items": [{**node, "metadata": {"name": NODE}}]})
    write_kubeconfig(api.kubeconfig(inline=True), root)
    known.write_journalctl(programs)
    monkeypatch.setenv("PATH", str(programs))
    patient = partial(NodePods, timeout_s=20.0)  # this machine may be busy
    monkeypatch.setattr("pycrictl.cli.commands.diagnosing.NodePods", patient)

    def call(*words: str) -> Run:
        words = ("--host-root", str(root), "-r", fake.endpoint, "why", *words)
        return Run(*words, wall_clock=lambda: known.at_s)

    return call


def causes(why: Why, *words: str) -> dict[str, tuple[str, str]]:
    """Return the causes of the recorded node's sick pods."""
    done = why("-o", "json", *words)
    assert done.stderr == ""
    names = {
        str(parse_pod(document)): name_of(document) for document in recording("node").of("Pod")
    }
    return {
        names.get(finding["pod"], "report"): (finding["cause"]["kind"], finding["cause"]["text"])
        for finding in json.loads(done.stdout)["findings"]
    }


def sick_on_node(*without: str) -> set[str]:
    """Return the pods with a problem that have a node."""
    calm = ("healthy", "finished")
    pods = {name_of(document) for document in recording("node").of("Pod")}
    return {name for name in pods if CAUSE[name][0] not in calm} - {*without}


def test_each_pod_on_the_node(node: Why) -> None:
    said = causes(node)
    check(said)
    assert said.keys() == sick_on_node()


def test_each_pod_on_a_node_without_the_api_server(node: Why) -> None:
    said = causes(node, "--no-kube")
    kinds = {name: cause[0] for name, cause in CAUSE.items()} | WITHOUT_API
    assert {name: cause[0] for name, cause in said.items()} == {name: kinds[name] for name in said}
    rejected = {name for name, cause in CAUSE.items() if cause[0] in ("rejected", "evicted")}
    ended = {"finalizer", *(name for name, kind in WITHOUT_API.items() if kind == "healthy")}
    unseen = {"no-configmap", "no-secret", "host-path", "no-runtime-class"}  # without a sandbox
    assert said.keys() == sick_on_node(*rejected, *ended, *unseen)


@pytest.mark.parametrize("more", [(), ("--no-kube",)])
def test_texts_for_people_on_the_node(node: Why, more: tuple[str, ...]) -> None:
    pods = [str(parse_pod(document)) for document in recording("node").of("Pod")]
    shown = [node(*more), *(node(pod, *more) for pod in pods)]
    lines = "".join(process.stdout + process.stderr for process in shown).splitlines()
    assert len(lines) > 2 * len(pods)
    assert not [line for line in lines if re.search(NOISE, line)]


@pytest.mark.parametrize("pressure", ["MemoryPressure", "DiskPressure", "PIDPressure"])
def test_a_node_under_pressure(pressure: str) -> None:
    condition = {"type": pressure, "status": "True", "lastTransitionTime": "2026-11-28T20:00:00Z"}
    ready = {"type": "Ready", "status": "True"}
    node = {"metadata": {"name": "n1"}, "status": {"conditions": [ready, condition]}}
    said = report(parse_node(node), Side.CLUSTER).cause
    assert (said.kind, said.weight) == ("node-pressure", Weight.WARNING)
    assert said.text.startswith(f"has {pressure}: ")


def test_the_manual_has_each_kind_of_cause() -> None:
    page = (Path(__file__).parents[2] / "man/prose/pycrictl-why.md").read_text()
    kinds = {cause.kind for cause in CAUSES} - {"{kind}"}
    images = (re.search(r"of images\n: (.*?)\n\n", page, re.DOTALL) or page)[1]
    assert kinds == {kind for kind in kinds if f"`{kind}`" in page}
    troubles = {cause.kind for cause in PULL_CAUSES} - {"disk-full"}
    assert troubles == {kind for kind in troubles if f"`{kind}`" in images}


def test_the_table_has_no_row_without_a_word() -> None:
    for cause in CAUSES:
        assert cause.text
        assert cause.advice or cause.weight is Weight.NOTE, cause.kind
