"""``kubectl why``: facts about pods from the API server, by kubectl alone.

Events replace the kubelet's journal: their messages are converted to its lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from pycrictl.agent.api.names import GROUP
from pycrictl.diagnosis import facts
from pycrictl.diagnosis.findings import Finding, Missing
from pycrictl.diagnosis.pod import Look, PodReport, diagnose
from pycrictl.errors import NotFound, PycrictlError
from pycrictl.foreign import count, mapping, mappings, moment, text
from pycrictl.kube.pods import EPHEMERAL, Pod, parse_pod, readiness
from pycrictl.kubectl.pod_selection import Asked, documents_of, where
from pycrictl.kubectl.program import Kubectl
from pycrictl.progress.failures import REASONS, cause
from pycrictl.pulls.messages import pull_in_status
from pycrictl.pulls.state import Phase, PullState

LOG_LINES: Final = 3
LOG_LINE_CHARS: Final = 300

_KINDS: Final = ("initContainer", "container", "ephemeralContainer")
_RUNS: Final = ("Pulling", "Extracting", "Queued")
_FAILED: Final = ("Failed", "BackOff")
_PROBE: Final = " probe failed:"
_NO_SANDBOX: Final = "FailedCreatePodSandBox"


def look(kubectl: Kubectl, asked: Asked, now_s: float) -> Look:
    """Diagnose the requested pods, the most severe first."""
    namespace, pods = documents_of(kubectl, asked)
    if not pods and asked.names:
        raise NotFound("no such pod")
    missing: list[Missing] = []
    warnings = (where(namespace), "--field-selector=type=Warning")
    events = _listed(kubectl, "events", missing, "events", *warnings)
    pulls = _listed(kubectl, "agents", missing, f"imagepulls.{GROUP}", where(namespace))
    reports = []
    for pod in pods:
        logs = _logs(kubectl, pod) if len(pods) == 1 and asked.names else {}
        if (found := facts_of(pod, Evidence(events, pulls, logs, tuple(missing)), now_s)) is None:
            continue
        node = text(mapping(pod.get("spec")).get("nodeName"))
        findings = [for_cluster(one, found, node) for one in diagnose(found)]
        reports.append(PodReport(found, findings))
    return Look(sorted(reports, key=lambda one: one.severity_key), (), tuple(missing))


def _listed(
    kubectl: Kubectl, source: str, missing: list[Missing], kind: str, *words: str
) -> list[dict[str, Any]]:
    try:
        found = kubectl.documents("get", kind, *words, "--output=json")
    except PycrictlError as exc:
        missing.append(Missing(source, exc.message))
        return []
    return mappings(mapping(found).get("items"))


def _logs(kubectl: Kubectl, pod: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the last log lines of the containers that failed, if there are any."""
    metadata = mapping(pod.get("metadata"))
    found: dict[str, tuple[str, ...]] = {}
    for container, is_before in needs_log(pod):
        words = ["logs", text(metadata.get("name")), f"--container={container}"]
        words += [f"--namespace={text(metadata.get('namespace'))}", f"--tail={LOG_LINES}"]
        try:
            said = kubectl.output(*words, *(["--previous"] if is_before else []))
        except PycrictlError:
            continue
        lines = said.decode("utf-8", "replace").splitlines()
        found[container] = tuple(line[:LOG_LINE_CHARS] for line in lines if line.strip())
    return found


class Evidence(NamedTuple):
    """Data about pods from other sources; those in ``missing`` were not available."""

    events: Sequence[dict[str, Any]] = ()
    pulls: Sequence[dict[str, Any]] = ()
    logs: dict[str, tuple[str, ...]] = {}  # noqa: RUF012 - never changed
    missing: tuple[Missing, ...] = ()


def facts_of(document: dict[str, Any], known: Evidence, now_s: float) -> facts.PodFacts | None:
    if (pod := parse_pod(document)) is None:
        return None
    status = mapping(document.get("status"))
    conditions = {text(one.get("type")): one for one in mappings(status.get("conditions"))}
    containers = tuple(
        _container(one, f"{kind}s", mapping(spec), known)
        for kind in _KINDS
        for spec in mappings(mapping(document.get("spec")).get(f"{kind}s"))
        for one in [_status_of(status, kind, text(spec.get("name")))]
    )
    has_begun = any(one.state for one in containers)
    is_made = text(mapping(conditions.get("PodReadyToStartContainers")).get("status")) == "True"
    scheduled = mapping(conditions.get("PodScheduled"))
    unscheduled = ""
    if not pod.node and pod.phase in ("", "Pending"):
        unscheduled = text(scheduled.get("message")) or "the scheduler has not said why"
    return facts.PodFacts(
        namespace=pod.namespace,
        name=pod.name,
        phase=pod.phase,
        reason=pod.reason,
        message=pod.message,
        unscheduled=" ".join(unscheduled.split()),
        now_s=now_s,
        sandbox=facts.Sandbox("", is_ready=True) if has_begun or is_made else None,
        containers=containers,
        images=tuple(_images(pod, known)),
        journal=tuple(_lines(pod, known.events)),
        missing=known.missing,
    )


def needs_log(document: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """Iterate over the containers that failed, and whether it was their previous run."""
    status = mapping(document.get("status"))
    for kind in _KINDS:
        for one in mappings(status.get(f"{kind}Statuses")):
            now = mapping(one, "state", "terminated")
            before = mapping(one, "lastState", "terminated")
            if now.get("exitCode"):
                yield text(one.get("name")), False
            elif before.get("exitCode"):
                yield text(one.get("name")), True


def for_cluster(finding: Finding, found: facts.PodFacts, node: str) -> Finding:
    pod = f"{found.name} -n {found.namespace}"
    advice = _ADVICE.get(finding.kind, finding.advice).replace("POD", pod)
    if "'pycrictl " in advice or "journalctl" in advice:
        advice = f"on node {node}: {advice}" if node else ""
    return finding._replace(advice=advice)


_LOGS: Final = "'kubectl logs --previous POD' shows the log of the run before"
_ADVICE: Final = {
    "crash-loop": _LOGS,
    "crashed": "'kubectl logs POD' shows its log",
    "out-of-memory": f"raise its memory limit, or find what uses the memory: {_LOGS}",
    "pulling": "'kubectl image-pull-progress POD' shows how it goes on",
    "queued": "'kubectl get imagepulls -A' shows what is pulled before it",
    "unknown": "'kubectl describe pod POD' may say more",
    "unknown-state": "'kubectl describe pod POD' may say more",
}


def _status_of(status: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    own = (one for one in mappings(status.get(f"{kind}Statuses")) if one.get("name") == name)
    return next(own, {"name": name})


def _container(
    one: dict[str, Any], key: str, spec: dict[str, Any], known: Evidence
) -> facts.Container:
    state = mapping(one.get("state"))
    before = mapping(one, "lastState", "terminated")
    running, ended = mapping(state.get("running")), mapping(state.get("terminated"))
    waiting = mapping(state.get("waiting"))
    name = text(one.get("name"))
    last = ended or before
    stands = "running" if running else "exited" if last else ""
    return facts.Container(
        name=name,
        id=text(one.get("containerID")).rpartition("/")[2],
        image=text(spec.get("image")),
        state=stands,
        exit_code=count(last.get("exitCode")),
        reason=text(last.get("reason")) if stands == "exited" else "",
        message=text(last.get("message")) if stands == "exited" else "",
        restarts=count(one.get("restartCount")),
        started_s=moment(running.get("startedAt") or last.get("startedAt")),
        finished_s=moment(last.get("finishedAt")),
        has_crashed_before=count(before.get("exitCode")) != 0,
        waiting=text(waiting.get("reason")),
        waiting_message=text(waiting.get("message")),
        is_ready=readiness(key, spec, one) if running else None,
        is_ephemeral=key == EPHEMERAL,
        lines=known.logs.get(name, ()),
    )


def _images(pod: Pod, known: Evidence) -> Iterator[facts.Image]:
    for reference in dict.fromkeys(one.image for one in pod.images):
        uses = [one for one in pod.images if one.image == reference]
        reason = next((one for one in uses if one.reason in REASONS), None)
        found = next((one for one in known.pulls if _is_of(one, pod, reference)), {})
        status = mapping(found.get("status"))
        phase = text(status.get("phase"))
        failure = ""
        if phase in _FAILED or (reason is not None and phase not in _RUNS):
            said = text(status.get("error")) or (reason.message if reason is not None else "")
            failure = cause(said or (reason.reason if reason is not None else "it failed"))
        is_there = any(one.has_started for one in uses)
        is_missing = reason is not None or phase in _RUNS
        yield facts.Image(
            reference,
            is_present=True if is_there else False if is_missing else None,
            pull=pull_in_status(status, PullState(image=reference), Phase.DOWNLOADING)
            if phase in _RUNS and status.get("unknown") is not True
            else None,
            failure="" if is_there else failure,
            says=reason.reason if reason is not None else "",
        )


def _is_of(pull: dict[str, Any], pod: Pod, reference: str) -> bool:
    spec = mapping(pull.get("spec"))
    return (spec.get("podUID"), spec.get("image")) == (pod.uid, reference)


def _lines(pod: Pod, events: Iterable[dict[str, Any]]) -> Iterator[facts.Line]:
    """Iterate over the events of a pod, the oldest first, as lines of the kubelet's journal."""
    found = []
    for event in events:
        about = mapping(event.get("involvedObject"))
        if (about.get("namespace"), about.get("name")) != (pod.namespace, pod.name):
            continue
        if about.get("uid") not in (None, "", pod.uid):
            continue
        series = mapping(event.get("series"))
        times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
        at_s = next((at for each in times if (at := moment(each))), 0.0)
        reason, said = text(event.get("reason")), text(event.get("message"))
        field = text(about.get("fieldPath"))
        container = field.partition("{")[2].rstrip("}")
        quoted = " ".join(said.split()).replace('"', '\\"')
        if reason == _NO_SANDBOX:
            said = f'Failed to create sandbox for pod err="{quoted}"'
        elif reason == "Unhealthy" and _PROBE in said:
            kind, _, output = quoted.partition(_PROBE)
            words = f'probeType="{kind}" containerName="{container}" output="{output.strip()}"'
            said = f'"Probe failed" {words}'
        found.append(facts.Line(at_s, "event", said))
    yield from sorted(found, key=lambda line: line.at_s)
