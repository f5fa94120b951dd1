"""``kubectl why``: facts about pods from the API server, by kubectl alone."""

from __future__ import annotations

from typing import Any, Final

from pycrictl.agent.api.names import GROUP
from pycrictl.diagnosis.findings import Missing
from pycrictl.diagnosis.pod import Look, PodReport, diagnose
from pycrictl.errors import NotFound, PycrictlError
from pycrictl.foreign import mapping, mappings, text
from pycrictl.kubectl.pod_selection import Asked, documents_of, where
from pycrictl.kubectl.podfacts import Known, facts_of, for_cluster, needs_log
from pycrictl.kubectl.program import Kubectl

LOG_LINES: Final = 3
LOG_LINE_CHARS: Final = 300


def look(kubectl: Kubectl, asked: Asked, now_s: float) -> Look:
    """Look at the pods that are asked for, the gravest first."""
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
        if (found := facts_of(pod, Known(events, pulls, logs, tuple(missing)), now_s)) is None:
            continue
        node = text(mapping(pod.get("spec")).get("nodeName"))
        findings = [for_cluster(one, found, node) for one in diagnose(found)]
        reports.append(PodReport(found, findings))
    return Look(sorted(reports, key=lambda one: one.gravity), (), tuple(missing))


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
    """Return the last lines of the containers that ended badly, as far as there are any."""
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
