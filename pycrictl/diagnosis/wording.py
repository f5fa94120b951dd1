"""The words that causes put into their sentences and advice. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pycrictl.base.units import age_in_words, plural, quote, readable, short_id, shorten
from pycrictl.diagnosis.conditions import MISSING_OBJECT, NOT_STARTED, noun
from pycrictl.diagnosis.facts import Container, Image, PodFacts, Source
from pycrictl.diagnosis.troubles import exit_words, pull_trouble, shortened, words_of
from pycrictl.kube.nodes import Node
from pycrictl.pulls.reference import parse
from pycrictl.pulls.sources.failures import cause
from pycrictl.pulls.words import far, queue, starts_in

EVIDENCE_CHARS: Final = 200
"""The most characters of a termination message in a sentence."""

_COMMANDS: Final = {
    "describe": (
        "'journalctl -u kubelet -n 50' may say more",
        "'kubectl describe pod {pod}' may say more",
    ),
    "doctor": ("'pycrictl doctor' shows", "'kubectl describe node {node}' shows"),
    "kubelet": (
        "'systemctl status kubelet' shows whether the kubelet is running",
        "'kubectl describe node {node}' shows more; if the machine is up, its kubelet has to start",
    ),
    "log": ("'pycrictl logs {id}' shows its log", "'kubectl logs {pod}{option}' shows its log"),
    "last_log": (
        "'pycrictl logs {previous}{id}' shows {whose} log",
        "'kubectl logs {previous}{pod}{option}' shows {whose} log",
    ),
    "missing": ("create it: 'kubectl get {wanted}' shows nothing",) * 2,
    "watch": (
        "'pycrictl image-pull-progress {pod}' shows how it goes on",
        "'kubectl image-pull-progress {pod}' shows how it goes on",
    ),
    "queue": (
        "'pycrictl pull-limiter status' shows the line and the limit",
        "'kubectl get imagepulls -A' shows what is before it",
    ),
    "connection": (
        "'pycrictl doctor --registry {repository}' tests the connection",
        "check the registry of {repository}, and what is in front of it",
    ),
}
"""Words of advice, on the node and at a workstation where kubectl runs."""


class Wording:
    """Fills in the texts of a cause of a pod, node, workload or claim, or of an item of a pod."""

    def __init__(self, subject: Any, item: Any, detail: str, is_on_node: bool) -> None:
        self._is_on_node = is_on_node
        if isinstance(subject, Node):
            self._words = {"node": subject.name}
        elif isinstance(subject, PodFacts):
            self._words = _of_pod(subject, item, is_on_node)
        else:
            kind = getattr(subject, "kind", "pvc")
            name = f"{kind}/{subject.name} -n {subject.namespace}"
            self._words = {**subject._asdict(), "object": name}
        if missing := re.search(MISSING_OBJECT, detail):
            name = missing["name"].rpartition("/")[2]
            self._words["wanted"] = f"{missing['kind']} -n {self._words['namespace']} {name}"
        self.detail = self._words["detail"] = detail

    def text(self, text: str) -> str:
        return readable(text.format_map(self._words))

    def advice(self, advice: str | Mapping[str, str]) -> str:
        """Fill in advice; of several, that whose pattern is found first in the detail."""
        if not isinstance(advice, str):
            found = {re.search(pattern, self.detail): one for pattern, one in advice.items()}
            first = min(filter(None, found), key=lambda one: (not one[0], one.start()))
            advice = found[first]
        for name, (on_node, in_cluster) in _COMMANDS.items():
            advice = advice.replace(f"{{{name}}}", on_node if self._is_on_node else in_cluster)
        return self.text(advice)


def _of_pod(facts: PodFacts, item: Any, is_on_node: bool) -> dict[str, Any]:
    reason, message, node, owner = "", "", "", "its controller"
    if (pod := facts.pod) is not None:
        reason, message, node, owner = pod.reason, pod.message, pod.node, pod.owner
    unseen = [one for one in (Source.API, Source.JOURNAL) if one not in facts.seen]
    ended_s = max((one.finished_s for one in facts.containers), default=0.0)
    stray = list(facts.stray_pulls.items())[:1]
    words = {
        "pod": facts.full_name if is_on_node else f"{facts.name} -n {facts.namespace}",
        "namespace": facts.namespace,
        "node": node,
        "reason": reason,
        "message": f": {' '.join(message.split()).rstrip('.')}" if message else "",
        "successor": f"{owner.replace('/', ' ') or 'no controller'} makes another",
        "unseen": f" (unavailable: {', '.join(unseen)})" if unseen else "",
        "ended": f", {age_in_words(max(facts.now_s - ended_s, 0.0))} ago" if ended_s else "",
        "stray_pull": "".join(f"{quote(k)} is being pulled, {far(v)}" for k, v in stray),
    }
    if isinstance(item, Container):
        return words | _of_container(facts, item, is_on_node)
    return words | _of_image(item, is_on_node) if isinstance(item, Image) else words


def _of_container(facts: PodFacts, one: Container, is_on_node: bool) -> dict[str, str]:
    code = f"exit code {one.exit_code}"
    code += exit_words(one.exit_code) if one.reason != "OOMKilled" else ""
    restarts = plural(one.restarts, "restart")
    is_before = one.state == "running" or (one.waiting and not is_on_node)
    return {
        "container": noun(one),
        "id": short_id(one.id),
        "option": f" -c {one.name}" if len(facts.containers) > 1 else "",
        "previous": "--previous " if is_before else "",
        "whose": "its last run's" if is_before else "its",
        "is": "is running, but" if one.state == "running" else "is not running:",
        "exit": f"{code}, {restarts}" if one.restarts else code,
        "restarts": restarts,
        "age": age_in_words(max(facts.now_s - one.started_s, 0.0)),
        "evidence": _evidence(one),
        **_of_failure(cause(one.waiting_message) or one.waiting, one.image, is_on_node),
    }


def _evidence(one: Container) -> str:
    """Return what a container said at its end: its termination message, or its last line."""
    said = " / ".join(line.strip() for line in one.message.splitlines() if line.strip())
    if said and one.reason not in NOT_STARTED:
        return f"; its termination message: {shorten(said, EVIDENCE_CHARS)}"
    return f"; its last line: {one.lines[-1].strip()}" if one.lines else ""


def _of_failure(error: str, image: str, is_on_node: bool) -> dict[str, str]:
    trouble = pull_trouble(error)
    words = words_of(trouble, image, is_on_node=is_on_node)
    error = shortened(error)
    return {"kind": trouble.kind, "trouble": words.text, "error": error, "remedy": words.advice}


def _of_image(image: Image, is_on_node: bool) -> dict[str, str]:
    pull = image.pull
    is_contrary = image.says in ("ImagePullBackOff", "ErrImagePull")
    return {
        "image": quote(image.reference),
        "repository": parse(image.reference).name,
        "place": queue(pull.place, pull.behind, starts_in(pull)) if pull is not None else "",
        "progress": far(pull) if pull is not None else "",
        "contrary": f" (the kubelet still says {image.says})" if is_contrary else "",
        "next_try": f"; {image.next_try}" if image.next_try else "",
        **_of_failure(image.failure, image.reference, is_on_node),
    }
