"""The most likely cause in facts that ``test_recorded`` lacks, and how it is written."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest

from pycrictl.diagnosis.error_causes import pull_cause
from pycrictl.diagnosis.facts import Container, Image, PodFacts, Sandbox, Source
from pycrictl.diagnosis.findings import Disk, Finding, Missing, RuntimeCondition
from pycrictl.diagnosis.pod import document, report
from pycrictl.kube.kubelet_log import signs_in
from pycrictl.kube.pods import Pod
from pycrictl.node.journal import JournalLine as Line
from pycrictl.pulls.state import PullState
from pycrictl.show.datatext import document_json
from pycrictl.show.diagnosis_text import write_pod
from tests.pulls.tracking import sums

NOW = 1_790_000_000.0
GIB = 1 << 30
READY = Sandbox("5a" * 32, is_ready=True, created_s=NOW - 300)
GONE = Sandbox("5a" * 32, is_ready=False, created_s=NOW - 300)
RUNNING = Container(
    "app", "c0" * 32, "reg.example/web:1", "running", started_s=NOW - 7200, restarts=0
)
ENDED = replace(RUNNING, state="exited", finished_s=NOW - 60)
ABSENT = Image("reg.example/web:1", is_present=False)
PRESENT = Image("reg.example/web:1", is_present=True)
TO_COME = Container("app", image="reg.example/web:1", waiting="ContainerCreating")
ROOMY = Disk("/var/lib/containerd", "images", 100 * GIB, 40 * GIB, 1000, 900)

CNI = (
    'time="2026-05-01T10:00:00.1Z" level=error msg="RunPodSandbox for &PodSandboxMetadata{Name:web,'
    'Uid:u1,Namespace:default,Attempt:0,} failed, error" error="failed to setup network for '
    'sandbox \\"0f1e2d\\": plugin type=\\"bridge\\" failed (add): failed to allocate for range 0: '
    'no IP addresses available in range set: 10.1.0.1-10.1.0.2"'
)
FULL = (
    'time="2026-05-01T10:00:00.1Z" level=error msg="RunPodSandbox for &PodSandboxMetadata{Name:web,'
    'Uid:u1,Namespace:default,Attempt:0,} failed, error" error="failed to create containerd '
    "container: prepare snapshot: mkdir /var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/"
    'snapshots/new-42: no space left on device"'
)


def diagnose(pod: PodFacts) -> list[Finding]:
    return report(pod).findings


def facts(**more: Any) -> PodFacts:
    """Return the facts of a pod; what the API server has, ``api``, only if given."""
    known: dict[str, Any] = {
        "sandbox": READY,
        "containers": (RUNNING,),
        "images": (PRESENT,),
        "disks": (ROOMY,),
        "now_s": NOW,
        "seen": (Source.RUNTIME, Source.JOURNAL),
    }
    known["signs"] = tuple(signs_in(more.get("journal", ())))
    if (api := more.pop("api", None)) is not None:
        known["pod"] = Pod("default", "web", "u1", **{"images": (), "pull_secrets": (), **api})
        known["seen"] += (Source.API,)
    return PodFacts("default", "web", **known | more)


def waits_for(**image: Any) -> PodFacts:
    return facts(containers=(TO_COME,), images=(replace(ABSENT, **image),))


FIRST_LINES = {
    "pulling": (
        waits_for(pull=PullState(sums=sums(3 << 20, 24 << 20, 1.5 * (1 << 20), 13.5))),
        'is waiting: image "reg.example/web:1" is being pulled, 12 %, 3.0 of 24.0 MiB,'
        " 1.5 MiB/s, 14s left",
    ),
    "queued": (
        waits_for(pull=PullState(place=2, behind="default/batch", starts_in_s=30.0)),
        'is waiting: image "reg.example/web:1" is queued, 2nd, behind default/batch, starts in 30s',
    ),
    "not-found": (
        waits_for(failure="reg.example/web:1: not found", next_try="next try about 10:00:10"),
        'is not running: image "reg.example/web:1": the registry does not have it'
        " (reg.example/web:1: not found); next try about 10:00:10",
    ),
    "crash-loop": (
        facts(
            containers=(
                replace(ENDED, exit_code=3, reason="Error", restarts=5, lines=("no database",)),
            )
        ),
        'is not running: container "app" keeps crashing: exit code 3, 5 restarts; its last'
        " line: no database",
    ),
    "cni": (
        facts(sandbox=None, containers=(TO_COME,), journal=(Line(NOW, "containerd", CNI),)),
        'is not running: its network cannot be set up: plugin type="bridge" failed (add): failed to'
        " allocate for range 0: no IP addresses available in range set: 10.1.0.1-10.1.0.2",
    ),
    "disk-full": (
        facts(sandbox=None, containers=(TO_COME,), journal=(Line(NOW, "containerd", FULL),)),
        "is not running: there is no space left to make its sandbox (failed to create containerd"
        " container: prepare snapshot: mkdir /var/lib/containerd/io.containerd.snapshotter.v1."
        "overlayfs/snapshots/new-42: no space left on device)",
    ),
    "sandbox-gone": (
        facts(sandbox=GONE),
        "is not running: its sandbox is gone (no longer ready)",
    ),
    "healthy": (facts(), "is running: 1 container, for 2 hours"),
}


@pytest.mark.parametrize("kind", FIRST_LINES)
def test_the_first_line(kind: str) -> None:
    pod, first_line = FIRST_LINES[kind]
    cause = diagnose(pod)[0]
    assert (cause.kind, cause.text) == (kind, first_line)
    assert json.loads(document_json(document(pod)))["cause"]["kind"] == kind
    out = io.StringIO()
    write_pod(document(pod), out)
    lines = out.getvalue().splitlines()
    assert lines[0] == f"default/web {first_line}"
    if kind == "healthy":
        assert len(lines) == 1
    else:
        assert lines[1].startswith("next         ")
        assert len(lines) < 24


def ended(exit_code: int, reason: str = "Error", **more: Any) -> Container:
    return replace(ENDED, exit_code=exit_code, reason=reason, **more)


def of(*containers: Container, **more: Any) -> PodFacts:
    return facts(containers=containers, **more)


def gone(*containers: Container, **more: Any) -> PodFacts:
    return of(*containers, sandbox=GONE, **more)


def bare(*lines: str, **more: Any) -> PodFacts:
    """Return the facts of a pod without a sandbox, with these lines in the journal."""
    journal = tuple(Line(NOW, "kubelet", line) for line in lines)
    return of(TO_COME, sandbox=None, journal=journal, **more)


RESERVED = (
    'level=error msg="RunPodSandbox for &PodSandboxMetadata{Name:web,Uid:u1,Namespace:default,'
    'Attempt:0,} failed, error" error="failed to reserve sandbox name \\"web_default_u1_0\\""'
)
EVICTED = '"Eviction manager: pod is evicted successfully" pod="default/web"'
KILL = (
    '"Error syncing pod, skipping" err="failed to \\"KillPodSandbox\\" for \\"u1\\" with'
    ' KillPodSandboxError: \\"rpc error: code = Unknown desc = failed to destroy network: no plugin'
    '\\"" pod="default/web" podUID="u1"'
)
AGAIN = replace(ENDED, state="running", started_s=NOW - 5, has_crashed_before=True, exit_code=3)
YOUNG = replace(AGAIN, restarts=2)
UNPACKING = "failed to extract layer sha256:12: write /var/lib/x: no space left on device: unknown"

OTHERS: dict[str, tuple[PodFacts, str, str]] = {
    # The image's error does not name the disk; the full disk is a finding of its own.
    "a full disk while an image is unpacked": (
        replace(waits_for(failure=UNPACKING), disks=(ROOMY._replace(free_bytes=0),)),
        "disk-full disk-full",
        'is not running: image "reg.example/web:1": there is no space',
    ),
    # Bytes arrive while the kubelet still reports a back-off; the last failure is outdated.
    "the last error stays until bytes arrive": (
        waits_for(pull=PullState(image="x"), says="ImagePullBackOff", failure="no such host"),
        "registry-down",
        'is not running: image "reg.example/web:1": ',
    ),
    "what the kubelet says stands beside what is": (
        waits_for(
            pull=PullState(sums=sums(1, 2, 1.0)), says="ImagePullBackOff", failure="i/o timeout"
        ),
        "pulling",
        "(the kubelet still says ImagePullBackOff)",
    ),
    "a stalled pull": (
        waits_for(pull=PullState(sums=replace(sums(1 << 20, 2 << 20, 0.0), stalled_s=95.0))),
        "stalled",
        "has stalled for 1m35s",
    ),
    "between two crashes": (of(YOUNG), "crash-loop", "is running, but"),
    "restarted, but the last exit is not known": (
        of(replace(RUNNING, started_s=NOW - 5, restarts=2)),
        "healthy",
        "is running: ",
    ),
    "restarted once, and ready": (of(replace(YOUNG, restarts=1)), "healthy", "is running: "),
    "restarted once, and not ready": (
        of(replace(YOUNG, restarts=1, is_ready=False)),
        "crash-loop probe",
        "is running, but",
    ),
    "a sandbox that cannot be removed": (
        gone(ended(137), journal=(Line(NOW, "kubelet", KILL),)),
        "kill-failed",
        "its sandbox is not ready, and cannot be stopped: failed to destroy network: no plugin",
    ),
    "a pod that cannot be stopped": (
        of(
            journal=(Line(NOW, "kubelet", KILL),),
            api={"phase": "Running", "node": "n1", "deletion_s": NOW - 60},
        ),
        "kill-failed",
        "is being deleted, but cannot be stopped: failed to destroy network: no plugin",
    ),
    "done without its sandbox": (gone(ended(0, "Completed")), "finished", "has finished"),
    "a sidecar that the end of its pod killed": (
        of(ended(0, "Completed"), replace(ended(143), name="side"), api={"phase": "Succeeded"}),
        "finished",
        "has finished",
    ),
    "ended with its sandbox": (gone(ended(137, restarts=2)), "sandbox-gone", "its sandbox is gone"),
    "an image weighs more than another container's crash": (
        of(
            TO_COME,
            replace(ended(1), name="side"),
            images=(replace(ABSENT, failure="x: not found"),),
        ),
        "not-found crashed",
        "the registry does not have it",
    ),
    "no network at all": (
        bare(problems=(RuntimeCondition("NetworkReady", "cni plugin not initialized"),)),
        "cni",
        "cni plugin not initialized",
    ),
    "evicted, the journal says": (bare(EVICTED), "evicted", "the journal says"),
    "an eviction that is over": (
        bare(EVICTED, api={"phase": "Pending", "node": "n1"}),
        "unknown",
        "no error is known",
    ),
    "a reserved name is what a failure left": (bare(CNI, RESERVED), "cni", FIRST_LINES["cni"][1]),
    "a probe that does not succeed": (
        of(replace(RUNNING, is_ready=False)),
        "probe",
        'is not ready: the readiness probe of container "app" has not succeeded yet',
    ),
}


@pytest.mark.parametrize(("pod", "kinds", "said"), OTHERS.values(), ids=OTHERS)
def test_other_causes(pod: PodFacts, kinds: str, said: str) -> None:
    findings = diagnose(pod)
    assert [finding.kind for finding in findings] == kinds.split()
    assert said in findings[0].text


def test_sources_that_are_missing_are_named() -> None:
    pod = replace(waits_for(failure="x: not found"), missing=(Missing("journal", "no lines"),))
    assert "Unavailable  journal: no lines" in shown(pod)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("unexpected status code 500 Internal Server Error", "registry-down"),
        ("unexpected status code 429 Too Many Requests", "rate-limited"),
        ("dial tcp: lookup reg.example on 10.0.0.1:53: no such host", "registry-down"),
        ("unexpected status from HEAD request to http://r/v2/a: 401 Unauthorized", "unauthorized"),
        ("no match for platform in manifest: not found", "wrong-platform"),
        ("first record does not look like a TLS handshake", "plain-http"),
        ("x509: certificate is valid for a.example, not b.example", "x509"),
        ("remote error: tls: bad certificate", "x509"),
        ("remote error: tls: handshake failure", "registry-down"),
        ("context canceled", "pull-failed"),
        ("something else", "pull-failed"),
    ],
)
def test_errors_of_pulls(error: str, kind: str) -> None:
    assert pull_cause(error).kind == kind


def shown(pod: PodFacts, columns: int = 0) -> list[str]:
    out = io.StringIO()
    write_pod(document(pod), out, columns)
    return out.getvalue().splitlines()


def test_lines_fit_a_terminal_and_commands_stay_whole() -> None:
    pod, _ = FIRST_LINES["not-found"]
    lines = shown(pod, 52)
    assert lines[:6] == [
        'default/web is not running: image',
        '  "reg.example/web:1": the registry does not have it',
        "  (reg.example/web:1: not found); next try about",
        "  10:00:10",
        "next         check its name and tag;",
        "             'pycrictl pull reg.example/web:1' tries",
    ]  # fmt: skip
    assert max(map(len, lines)) <= 52
    assert "Image        reg.example/web:1: failed" in lines  # the first line says why
    assert len(shown(pod)) < len(lines)


def test_other_findings_do_not_repeat_the_first() -> None:
    crashed = replace(ENDED, name="side", exit_code=1, reason="Error")
    pod = facts(
        containers=(TO_COME, crashed),
        images=(replace(ABSENT, failure="x: not found"),),
        disks=(ROOMY._replace(free_bytes=5 * GIB),),
    )
    assert [line for line in shown(pod) if line.startswith("also")] == [
        'also         container "side" has ended: exit code 1',
        'also         the file system of images ("/var/lib/containerd") is nearly full; the'
        " kubelet evicts pods: 5.0 GiB of 100.0 GiB free (5 %), 90 % of inodes",
    ]


def test_the_journal_without_what_only_a_log_needs() -> None:
    line = Line(
        NOW, "kubelet", 'E1122 19:00:00.2 1 log.go:32] "No" err="rpc error: code = A desc = b"'
    )
    ended = 'level=warning msg="cleaning up after shim disconnected" id=1'
    pod = replace(
        FIRST_LINES["cni"][0],
        journal=(
            Line(NOW, "containerd", CNI),
            line,
            Line(NOW, "containerd", ended),
            line,
        ),
    )
    journal = [row.split(": ", 1)[1] for row in shown(pod) if row.startswith("Journal")]
    assert [line[-30:] for line in journal] == [CNI[-31:-1], '"No" err="b"'[-30:]]
    assert "level=" not in journal[0]


@pytest.mark.parametrize(
    ("said", "cause", "advice"),
    [
        (
            '"Error processing volume" err="error processing PVC default/data: failed to fetch PVC '
            'from API server: persistentvolumeclaims \\"data\\" not found" pod="default/web"',
            'volume "default/data" cannot be mounted: failed to fetch PVC',
            "'kubectl get persistentvolumeclaim -n default data'",
        ),
        (
            'AttachVolume.Attach failed for volume "pv-1" : rpc error: code = Internal desc = disk'
            " is attached elsewhere",
            'volume "pv-1" cannot be mounted: disk is attached elsewhere',
            "the storage driver",
        ),
    ],
)
def test_volumes(said: str, cause: str, advice: str) -> None:
    pod = facts(sandbox=None, containers=(TO_COME,), journal=(Line(NOW - 9, "kubelet", said),))
    first = diagnose(pod)[0]
    assert first.kind == "volume"
    assert cause in first.text
    assert advice in first.advice
    assert diagnose(replace(pod, containers=(RUNNING,), sandbox=READY))[0].kind == "healthy"


PROBE = (
    '"Probe failed" probeType="Liveness" pod="default/web" podUID="u1" containerName="app"'
    ' probeResult="failure" output="HTTP probe failed with statuscode: 500"'
)


@pytest.mark.parametrize("code", [137, 143])
def test_a_liveness_probe_comes_before_the_crashes_that_it_makes(code: int) -> None:
    killed = replace(ENDED, exit_code=code, restarts=3, has_crashed_before=True)
    journal = (Line(NOW - 100, "kubelet", PROBE),)
    first = diagnose(facts(containers=(killed,), journal=journal))[0]
    assert first.kind == "liveness"
    assert "its liveness probe fails (HTTP probe failed with statuscode: 500)" in first.text
    again = replace(killed, state="running", started_s=NOW - 20)
    assert diagnose(facts(containers=(again,), journal=journal))[0].kind == "liveness"
    others = (
        facts(containers=(killed,)),
        facts(containers=(killed,), journal=(Line(NOW - 2000, "kubelet", PROBE),)),
        facts(containers=(replace(killed, name="other"),), journal=journal),
        facts(containers=(replace(killed, exit_code=3),), journal=journal),
    )
    assert {diagnose(other)[0].kind for other in others} == {"crash-loop"}


def test_a_readiness_probe_that_succeeds_again() -> None:
    ready = replace(RUNNING, is_ready=True)
    line = Line(NOW - 100, "kubelet", PROBE.replace("Liveness", "Readiness"))

    def kind(*containers: Container, line: Line = line) -> str:
        return diagnose(of(*containers, journal=(line,)))[0].kind

    assert kind(ready) == "healthy"
    assert kind(ready, replace(ended(0, "Completed"), name="init")) == "healthy"
    assert kind(replace(ready, is_ready=False)) == "probe"
    assert kind(replace(ready, is_ready=None)) == "probe", "no API server says more"
    assert kind(ready, line=Line(NOW - 30, "kubelet", PROBE)) == "probe"
    assert kind(ready, line=line._replace(message=PROBE)) == "healthy", "each failure is reported"


def test_a_container_of_kubectl_debug_does_not_make_a_pod_sick() -> None:
    debugger = replace(ended(130), name="debugger", role="debug")
    for container in (debugger, replace(debugger, state="running", is_ready=False)):
        assert [finding.kind for finding in diagnose(of(RUNNING, container))] == ["healthy"]
    assert diagnose(of(RUNNING, replace(debugger, role="")))[0].kind == "crashed"
