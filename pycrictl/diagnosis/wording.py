"""The words that causes put into their sentences and advice. Pure.

Commands in advice are for the node, or for a workstation where kubectl runs.
"""

from __future__ import annotations

import re
from typing import Any, Final

from pycrictl.diagnosis.conditions import MISSING_OBJECT, noun
from pycrictl.diagnosis.facts import Container, Image, PodFacts, Source
from pycrictl.diagnosis.troubles import exit_words, pull_trouble, shortened, words_of
from pycrictl.kube.nodes import Node
from pycrictl.kube.workloads import Claim, Workload
from pycrictl.progress.failures import cause
from pycrictl.progress.reference import parse
from pycrictl.pulls.words import far, starts_in
from pycrictl.units import age_in_words, ordinal, plural, quote

Words = dict[str, Any]

_ID_CHARS: Final = 13
_EVIDENCE_CHARS: Final = 200
_CREDENTIAL: Final = (
    "run as root on the node, so that the kubelet's credential says whose pull it is"
)


def words_for(subject: Any, item: Any, detail: str, is_on_node: bool) -> Words:
    """Return the words for a cause of a pod, node, workload or claim, and of an item of a pod."""
    if isinstance(subject, Node):
        return {"detail": detail, **_of_node(subject.name, is_on_node)}
    if isinstance(subject, Workload | Claim):
        last = subject.warnings[-1] if subject.warnings else ""
        named = {"warning": last, "object": _object(subject)}
        return {"detail": detail, **subject._asdict(), **named}
    words = {"detail": detail, **_of_pod(subject, is_on_node)}
    if isinstance(item, Container):
        words |= _of_container(subject, item, is_on_node)
    elif isinstance(item, Image):
        words |= _of_image(subject, item, words["pod"], is_on_node)
    if missing := re.search(MISSING_OBJECT, detail):
        wanted = f"{missing['kind']} -n {subject.namespace} {missing['name'].rpartition('/')[2]}"
        words["missing"] = f"create it: 'kubectl get {wanted}' shows nothing"
    return words


def _object(subject: Workload | Claim) -> str:
    kind = subject.kind if isinstance(subject, Workload) else "pvc"
    return f"{kind}/{subject.name} -n {subject.namespace}"


def _of_node(name: str, is_on_node: bool) -> Words:
    shows = "'pycrictl doctor' shows" if is_on_node else f"'kubectl describe node {name}' shows"
    kubelet = f"{shows} its conditions; its kubelet has to be started, if the machine is up"
    if is_on_node:
        kubelet = "'systemctl status kubelet' shows whether the kubelet is running"
    return {"node": name, "doctor": shows, "kubelet": kubelet}


def _of_pod(facts: PodFacts, is_on_node: bool) -> Words:
    name = facts.full_name if is_on_node else f"{facts.name} -n {facts.namespace}"
    describe = "journalctl -u kubelet -n 50" if is_on_node else f"kubectl describe pod {name}"
    unseen = [one for one in (Source.API, Source.JOURNAL) if one not in facts.seen]
    ended_s = max((one.finished_s for one in facts.containers), default=0.0)
    successor = "no controller makes another: create it again"
    if facts.pod is None or facts.pod.owner:
        owner = facts.pod.owner.replace("/", " ") if facts.pod is not None else "its controller"
        successor = f"{owner} makes another"
    reason, message = (
        (pod.reason, " ".join(pod.message.split())) if (pod := facts.pod) else ("", "")
    )
    stray = list(facts.stray_pulls.items())[:1]
    failed = list(facts.stray_failures.items())[-1:]
    return {
        **_of_node(facts.pod.node if facts.pod is not None else "", is_on_node),
        "pod": name,
        "namespace": facts.namespace,
        "reason": reason,
        "message": f": {message}" if message else "",
        "describe": f"'{describe}' may say more",
        "successor": successor,
        "unseen": f" (unavailable: {', '.join(unseen)})" if unseen else "",
        "ended": f", {age_in_words(max(facts.now_s - ended_s, 0.0))} ago" if ended_s else "",
        "credential": _CREDENTIAL,
        "stray_pull": "".join(f"{quote(k)} is being pulled, {far(v)}" for k, v in stray),
        "stray_failure": "".join(f"{quote(k)}: {pull_trouble(v).text} ({v})" for k, v in failed),
    }


def _of_container(facts: PodFacts, one: Container, is_on_node: bool) -> Words:
    words = exit_words(one.exit_code) if one.reason != "OOMKilled" else ""
    restarts = plural(one.restarts, "restart")
    code = f"exit code {one.exit_code}{words}"
    is_before = one.state == "running" or (one.waiting and not is_on_node)
    program = "pycrictl logs" if is_on_node else "kubectl logs"
    target = one.id[:_ID_CHARS] if is_on_node else f"{facts.name} -n {facts.namespace}"
    if not is_on_node and len(facts.containers) > 1:
        target += f" -c {one.name}"
    log = f"'{program} {target}' shows its log"
    last = f"'{program} --previous {target}' shows the log of its last run"
    return {
        "container": noun(one),
        "is": "is running, but" if one.state == "running" else "is not running:",
        "exit": f"{code}, {restarts}" if one.restarts else code,
        "restarts": restarts,
        "evidence": evidence(one),
        "log": log,
        "last_log": last if is_before else log,
        **_of_failure(cause(one.waiting_message) or one.waiting, one.image, is_on_node),
    }


def evidence(one: Container) -> str:
    """Return what a container said at its end: its termination message, or its last line."""
    lines = [line.strip() for line in one.message.splitlines() if line.strip()]
    if lines and one.reason not in ("StartError", "ContainerCannotRun"):
        text = " / ".join(lines)
        if len(text) > _EVIDENCE_CHARS:
            text = "…" + text[-_EVIDENCE_CHARS:]
        return f"; its termination message: {text}"
    return f"; its last line: {one.lines[-1].strip()}" if one.lines else ""


def _of_failure(error: str, image: str, is_on_node: bool) -> Words:
    trouble = pull_trouble(error)
    words = words_of(trouble, image, is_on_node=is_on_node)
    error = shortened(error)
    return {"kind": trouble.kind, "trouble": words.text, "error": error, "remedy": words.advice}


def _of_image(facts: PodFacts, image: Image, pod: str, is_on_node: bool) -> Words:
    pull = image.pull
    is_contrary = image.says in ("ImagePullBackOff", "ErrImagePull")
    program = "pycrictl" if is_on_node else "kubectl"
    name = parse(image.reference).name
    place = ""
    if pull is not None and pull.place:
        behind = f", behind {pull.behind}" if pull.behind else ""
        soon = starts_in(pull)
        starts = f", expected to start in {soon}" if soon else ""
        place = f"{ordinal(pull.place)} in line{behind}{starts}"
    queue = "'pycrictl pull-limiter status' shows the line and the limit"
    connection = f"'pycrictl doctor --registry {name}' tests the connection"
    return {
        "image": quote(image.reference),
        "place": place,
        "progress": far(pull) if pull is not None else "",
        "contrary": f" (the kubelet still says {image.says})" if is_contrary else "",
        "next_try": f"; {image.next_try}" if image.next_try else "",
        "watch": f"'{program} image-pull-progress {pod}' shows how it goes on",
        "queue": queue if is_on_node else "'kubectl get imagepulls -A' shows what is before it",
        "connection": connection
        if is_on_node
        else f"check the registry of {name}, and what is in front of it",
        **_of_failure(image.failure, image.reference, is_on_node),
    }
