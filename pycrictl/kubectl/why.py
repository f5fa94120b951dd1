"""``kubectl why``: facts about pods from the API server, by kubectl alone."""

from __future__ import annotations

import time
from collections.abc import Callable
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


class Pods:
    def __init__(
        self, kubectl: Kubectl, asked: Asked, wall_s: Callable[[], float] = time.time
    ) -> None:
        asked.check()
        self._kubectl = kubectl
        self._asked = asked
        self._wall_s = wall_s

    def look(self) -> Look:
        """Look at all of them, the gravest first."""
        namespace, pods = documents_of(self._kubectl, self._asked)
        if not pods and self._asked.names:
            raise NotFound("no such pod")
        is_single = len(pods) == 1 and bool(self._asked.names)
        missing: list[Missing] = []
        events = self._ask(
            "events", missing, "events", where(namespace), "--field-selector=type=Warning"
        )
        pulls = self._ask("agents", missing, f"imagepulls.{GROUP}", where(namespace))
        reports = []
        for pod in pods:
            logs = self._logs(pod) if is_single else {}
            known = Known(events, pulls, logs, tuple(missing))
            if (found := facts_of(pod, known, self._wall_s())) is None:
                continue
            node = text(mapping(pod.get("spec")).get("nodeName"))
            findings = [for_cluster(one, found, node) for one in diagnose(found)]
            reports.append(PodReport(found, findings))
        return Look(sorted(reports, key=lambda one: one.gravity), (), tuple(missing))

    def _ask(
        self, source: str, missing: list[Missing], kind: str, *words: str
    ) -> list[dict[str, Any]]:
        try:
            found = self._kubectl.documents("get", kind, *words, "--output=json")
        except PycrictlError as exc:
            missing.append(Missing(source, exc.message))
            return []
        return mappings(mapping(found).get("items"))

    def _logs(self, pod: dict[str, Any]) -> dict[str, tuple[str, ...]]:
        """Return the last lines of the containers that ended badly, as far as there are any."""
        metadata = mapping(pod.get("metadata"))
        found: dict[str, tuple[str, ...]] = {}
        for container, is_before in needs_log(pod):
            words = ["logs", text(metadata.get("name")), f"--container={container}"]
            words += [f"--namespace={text(metadata.get('namespace'))}", f"--tail={LOG_LINES}"]
            try:
                said = self._kubectl.output(*words, *(["--previous"] if is_before else []))
            except PycrictlError:
                continue
            lines = said.decode("utf-8", "replace").splitlines()
            found[container] = tuple(line[:LOG_LINE_CHARS] for line in lines if line.strip())
        return found
