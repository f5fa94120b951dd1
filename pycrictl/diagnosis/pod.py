"""Why a pod is not running: causes found in its facts, the most likely first. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

from pycrictl.diagnosis.facts import Container, Image, Line, PodFacts
from pycrictl.diagnosis.findings import (
    Disk,
    Finding,
    Missing,
    Weight,
    disk_findings,
    document_with,
    ranked,
)
from pycrictl.diagnosis.troubles import (
    FREE_SPACE,
    NO_SPACE,
    exit_words,
    is_bad_command,
    pull_trouble,
    sandbox_words,
    shortened,
    words_of,
)
from pycrictl.progress.reference import parse
from pycrictl.pulls.state import PullState
from pycrictl.pulls.words import far, starts_in
from pycrictl.units import age_in_words, format_duration, ordinal, plural, quote

HEALTHY: Final = "healthy"
FINISHED: Final = "finished"

RESTART_S: Final = 600.0
"""A container running for this long since its last crash is healthy, as it is for the kubelet."""

_KILLED: Final = (137, 143, 255)
"""Exit codes of containers whose sandbox was removed."""

_PROBE_S: Final = 300.0
PROBE_KILLS_S: Final = 900.0
"""How long a failed probe counts as the cause of a kill, as restarts take a while."""

_CONFIG_ERRORS: Final = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")


class PodReport(NamedTuple):
    """A pod and its findings, the most likely cause first; a healthy pod has one note."""

    facts: PodFacts
    findings: list[Finding]

    @property
    def cause(self) -> Finding:
        return self.findings[0]

    @property
    def is_sick(self) -> bool:
        return self.cause.weight > Weight.NOTE

    @property
    def severity_key(self) -> tuple[int, int, str]:
        return -self.cause.weight, -self.cause.rank, self.facts.full_name


class Look(NamedTuple):
    """The pods of a node, and findings that concern all of them."""

    reports: list[PodReport]
    disks: tuple[Disk, ...]
    missing: tuple[Missing, ...]
    findings: tuple[Finding, ...] = ()


def diagnose(facts: PodFacts) -> list[Finding]:
    if facts.phase == "Succeeded":
        return [_calm(facts)]
    own = tuple(one for one in facts.containers if not one.is_ephemeral)
    facts = replace(facts, containers=own)
    found = [
        *_unscheduled(facts),
        *_evicted(facts),
        *_sandbox(facts),
        *_volumes(facts),
        *_images(facts),
        *_containers(facts),
        *_probes(facts),
    ]
    causes = [one for one in found if one.weight > Weight.NOTE]
    if causes or not _is_well(facts):
        found += [_as_pods(one) for one in disk_findings(facts.disks)]
        if not causes:
            found.append(_unknown(facts))
        return ranked(found)
    return [_calm(facts)]


def document(facts: PodFacts) -> dict[str, Any]:
    return document_of(facts, diagnose(facts))


def document_of(facts: PodFacts, findings: list[Finding]) -> dict[str, Any]:
    cause, *also = findings
    healthy = cause.weight is Weight.NOTE
    return document_with(pod=facts.full_name, healthy=healthy, cause=cause, also=also, facts=facts)


def survey_document(look: Look) -> dict[str, Any]:
    sick = [one for one in look.reports if one.is_sick]
    found = [
        {"pod": one.facts.full_name, "cause": one.cause, "also": one.findings[1:]} for one in sick
    ]
    counts = {"sick": len(sick), "pods": len(look.reports)}
    return document_with(**counts, findings=found, node=look.findings, missing=look.missing)


def _is_well(facts: PodFacts) -> bool:
    states = [one.state for one in facts.containers]
    return bool(states) and all(state in ("running", "exited") for state in states)


def _calm(facts: PodFacts) -> Finding:
    running = [one for one in facts.containers if one.state == "running"]
    if running:
        age = age_in_words(max(facts.now_s - min(one.started_s for one in running), 0.0))
        text = f"is running: {plural(len(running), 'container')}, for {age}"
        return Finding(HEALTHY, Weight.NOTE, text)
    ended_s = max((one.finished_s for one in facts.containers), default=0.0)
    age = f", {age_in_words(max(facts.now_s - ended_s, 0.0))} ago" if ended_s else ""
    return Finding(FINISHED, Weight.NOTE, f"has finished: exit code 0{age}")


def _unknown(facts: PodFacts) -> Finding:
    waiting = [one for one in facts.containers if one.state in ("", "created")]
    whose = "run it as root on the node, so that the kubelet's credential says whose pull it is"
    if facts.stray_pulls:
        name, pull = next(iter(facts.stray_pulls.items()))
        text = f"may be waiting for an image: {quote(name)} is being pulled, {far(pull)}"
        return Finding("maybe-pulling", Weight.WARNING, text, whose)
    if facts.stray_failures:
        name, error = list(facts.stray_failures.items())[-1]
        text = f"may be waiting for an image: {quote(name)}: {pull_trouble(error).text} ({error})"
        return Finding("maybe-failed", Weight.WARNING, text, whose)
    if facts.sandbox is None:
        text = "is not running: it has no sandbox yet, and no error is known"
    elif waiting:
        text = f"is not running: {_names(waiting)} is still to start, and no error is known"
    elif not facts.containers:
        text = "is not running: its sandbox is ready, no container exists, and no error is known"
    else:
        text = "is not running, and no error is known"
    return Finding("unknown", Weight.WARNING, text, "'journalctl -u kubelet -n 50' may say more")


# The pod as a whole

_REJECTED: Final = (
    *("UnexpectedAdmissionError", "NodeAffinity", "NodeName", "NodePorts", "NodeShutdown"),
    *("Taints", "AppArmor", "SysctlForbidden", "TopologyAffinityError", "InvalidNodeInfo"),
    "PodOSNotSupported",
)
"""The kubelet's reasons for rejecting a pod (``lifecycle.PodAdmitHandler``), besides OutOf…."""

_EVICTED: Final = "Eviction manager: pod is evicted"


def _unscheduled(facts: PodFacts) -> Iterator[Finding]:
    if facts.unscheduled:
        text = f"is not running: no node has been found for it: {facts.unscheduled}"
        advice = "'kubectl describe nodes' shows what is free; its requests and rules may ask less"
        yield Finding("unscheduled", Weight.SERIOUS, text, advice, 97)


def _evicted(facts: PodFacts) -> Iterator[Finding]:
    advice = "its controller makes a new one; 'pycrictl doctor' shows what the node is short of"
    message = f": {' '.join(facts.message.split())}" if facts.message else ""
    if facts.phase == "Failed" and facts.reason == "Evicted":
        text = f"is not running: the node has evicted it{message}"
        yield Finding("evicted", Weight.SERIOUS, text, advice, 96)
    elif facts.phase == "Failed" and facts.reason.startswith(("OutOf", *_REJECTED)):
        text = f"is not running: the node does not take it ({facts.reason}){message}"
        advice = (
            "the kubelet does not try again: free what it needs on this node or correct the pod,"
            " then delete it, so that it is scheduled anew"
        )
        yield Finding("rejected", Weight.SERIOUS, text, advice, 96)
    elif facts.phase == "Failed" and facts.reason:
        text = f"is not running: the kubelet has ended it ({facts.reason}){message}"
        yield Finding("ended", Weight.SERIOUS, text, "its controller makes a new one", 96)
    elif not facts.phase and any(_EVICTED in line.message for line in facts.journal):
        text = "is not running: the journal says that the node has evicted it"
        yield Finding("evicted", Weight.SERIOUS, text, advice, 96)


# The sandbox


def _sandbox(facts: PodFacts) -> Iterator[Finding]:
    is_needed = facts.phase not in ("Succeeded", "Failed")
    if facts.sandbox is not None and facts.sandbox.is_ready:
        return
    error, is_network = _sandbox_error(facts.journal)
    has_run = any(one.state for one in facts.containers)
    if NO_SPACE in error:
        text = f"is not running: there is no space left to make its sandbox ({shortened(error)})"
        yield Finding("disk-full", Weight.SERIOUS, text, FREE_SPACE, 95)
    elif words := sandbox_words(error):
        text = f"is not running: {words.text}"
        yield Finding("sandbox-image", Weight.SERIOUS, text, words.advice, 93)
    elif error and is_network:
        text = f"is not running: its network cannot be set up: {shortened(error)}"
        advice = "check the CNI plugin's pods, /etc/cni/net.d and /opt/cni/bin"
        yield Finding("cni", Weight.SERIOUS, text, advice, 92)
    elif error:
        text = f"is not running: its sandbox cannot be made: {shortened(error)}"
        yield Finding("sandbox", Weight.SERIOUS, text, "'pycrictl info' shows the runtime", 91)
    elif facts.sandbox is None:
        for condition, why in facts.problems:
            if condition == "NetworkReady":
                text = f"is not running: the node's network is not ready: {why}"
                advice = "install or start a CNI plugin; /etc/cni/net.d holds its configuration"
                yield Finding("cni", Weight.SERIOUS, text, advice, 92)
    elif is_needed and (facts.phase or _is_taken(facts.containers) or not has_run):
        text = "is not running: its sandbox is gone (not ready any more)"
        advice = "the kubelet makes a new one; 'pycrictl rmp -f POD' removes what is left"
        advice = advice.replace("POD", facts.sandbox.id[:13])
        yield Finding("sandbox-gone", Weight.SERIOUS, text, advice, 90)


def _is_taken(containers: tuple[Container, ...]) -> bool:
    return any(
        one.state in ("running", "created", "unknown")
        or (one.state == "exited" and one.exit_code in _KILLED)
        for one in containers
    )


_SANDBOX_ERRORS: Final = (
    r'RunPodSandbox for .* failed.*?error="(?P<error>(?:[^"\\]|\\.)*)"',
    r"Failed to create sandbox for pod.*? err=\"(?P<error>(?:[^\"\\]|\\.)*)\"",
    r"\\?\"(?:Create|Run)PodSandbox(?:Error)?\\?\".*?(?P<error>rpc error: .*)",
)


def _sandbox_error(journal: tuple[Line, ...]) -> tuple[str, bool]:
    """Return the last error of creating the sandbox, and whether it is a network error.

    A reserved name is left over from an earlier failure, which is the actual cause.
    """
    error = ""
    for line in reversed(journal):
        if re.search(r"RunPodSandbox for .*returns sandbox id", line.message):
            break
        found = next(filter(None, (re.search(one, line.message) for one in _SANDBOX_ERRORS)), None)
        if found is not None:
            error = found["error"].replace('\\\\\\"', '"').replace('\\"', '"')
            if "failed to reserve sandbox name" not in error:
                break
    return error, bool(re.search(r"network (?:info )?for sandbox|\bcni\b|plugin type=", error))


# Volumes

_MOUNT_ERRORS: Final = (
    r'(?:Mount|Attach)Volume[^"]* failed for volume \\?"(?P<name>[^"\\]+)\\?".*? : (?P<error>.+)',
    r"error processing PVC (?P<name>\S+?): (?P<error>[^\n]+)",
    r"(?P<error>unmounted volumes=\[(?P<name>[^]]*)\].*)",
)
_MISSING_OBJECT: Final = r'(configmap|secret|persistentvolumeclaim)s? \\*"([^"\\]+)\\*" not found'


def _volumes(facts: PodFacts) -> Iterator[Finding]:
    if any(one.state for one in facts.containers) or facts.phase in ("Succeeded", "Failed"):
        return
    for pattern in _MOUNT_ERRORS:  # the last names only the volumes, so the others come first
        found = [
            match for line in reversed(facts.journal) if (match := re.search(pattern, line.message))
        ]
        if not found:
            continue
        name, error = found[0]["name"], found[0]["error"].split(" pod=")[0].strip(' "')
        text = f"is not running: volume {quote(name)} cannot be mounted: {shortened(error)}"
        advice = "'kubectl describe pod' and the storage driver's pods say more"
        if missing := re.search(_MISSING_OBJECT, error):
            kind, wanted = missing[1], missing[2].rpartition("/")[2]
            advice = f"create it: 'kubectl get {kind} -n {facts.namespace} {wanted}' shows nothing"
        yield Finding("volume", Weight.SERIOUS, text, advice, 89)
        return


# Images


def _images(facts: PodFacts) -> Iterator[Finding]:
    for image in facts.images:
        name = quote(image.reference)
        if image.is_present and image.pull is None:
            continue
        # Until bytes arrive, the last error stays: an attempt may end at once, like those before.
        pull = image.pull
        if pull is not None and (pull.has_bytes or pull.place or not image.failure):
            yield _pulling(facts.full_name, name, image, pull)
        elif image.failure:
            trouble = pull_trouble(image.failure)
            words = words_of(trouble, image.reference)
            text = f"is not running: image {name}: {words.text} ({image.failure})"
            if image.next_try:
                text += f"; {image.next_try}"
            yield Finding(trouble.kind, Weight.SERIOUS, text, words.advice, trouble.rank)


def _pulling(pod: str, name: str, image: Image, pull: PullState) -> Finding:
    watch = f"'pycrictl image-pull-progress {pod}' shows how it goes on"
    contrary = ""
    if image.says in ("ImagePullBackOff", "ErrImagePull"):
        contrary = f" (the kubelet still says {image.says})"
    if pull.place:
        behind = f", behind {pull.behind}" if pull.behind else ""
        soon = starts_in(pull)
        starts = f", expected to start in {soon}" if soon else ""
        text = f"is waiting: image {name} is queued, {ordinal(pull.place)} in line{behind}{starts}"
        advice = "'pycrictl pull-limiter status' shows the line and the limit"
        return Finding("queued", Weight.WARNING, text + contrary, advice, 60)
    if pull.sums.stalled_s:
        since = format_duration(int(pull.sums.stalled_s))
        text = f"is waiting: the pull of image {name} has stalled for {since}, {far(pull)}"
        advice = f"'pycrictl doctor --registry {parse(image.reference).name}' tests the connection"
        return Finding("stalled", Weight.SERIOUS, text + contrary, advice, 83)
    text = f"is waiting: image {name} is being pulled, {far(pull)}"
    return Finding("pulling", Weight.WARNING, text + contrary, watch, 61)


# Containers


def _containers(facts: PodFacts) -> Iterator[Finding]:
    for one in facts.containers:
        for found in _of_container(facts, one):
            yield found._replace(container=one.name)


def _of_container(facts: PodFacts, one: Container) -> Iterator[Finding]:
    if (killed := _killed_by_probe(facts, one)) is not None:
        yield killed
        return
    name = f"container {quote(one.name)}"
    logs = f"'pycrictl logs {one.id[:13]}' shows its log"
    last = f"; its last line: {one.lines[-1].strip()}" if one.lines else ""
    if one.state == "exited" and (one.exit_code or one.reason not in ("", "Completed")):
        is_gone = facts.sandbox is not None and not facts.sandbox.is_ready
        if not is_gone or one.exit_code not in _KILLED or one.reason == "OOMKilled":
            yield _ended(one, name, logs, last)  # else it ended with its sandbox
    elif one.state == "running" and one.has_crashed_before:
        if facts.now_s - one.started_s < RESTART_S:
            text = f"is running, but {name} has crashed before: {_restarts(one)}{last}"
            advice = f"'pycrictl logs --previous {one.id[:13]}' shows the log of its last crash"
            yield Finding("crash-loop", Weight.WARNING, text, advice, 70)
    elif one.waiting in _CONFIG_ERRORS and one.state != "running":
        text = f"is not running: {name} cannot be made: {shortened(one.waiting_message)}"
        kind = "bad-command" if is_bad_command(one.waiting_message) else "config"
        yield Finding(kind, Weight.SERIOUS, text, "correct the pod's configuration", 82)
    elif one.state == "unknown":
        text = f"is not running: the runtime does not say how {name} is"
        yield Finding("unknown-state", Weight.SERIOUS, text, "'pycrictl inspect' shows it", 75)


def _killed_by_probe(facts: PodFacts, one: Container) -> Finding | None:
    has_ended = one.state == "exited" or (
        one.has_crashed_before and facts.now_s - one.started_s < RESTART_S
    )
    if not has_ended or one.exit_code not in _KILLED or one.reason == "OOMKilled":
        return None
    for line in reversed(facts.journal):
        kind = re.search(r'"?Probe failed"? .*?probeType="(Liveness|Startup)"', line.message)
        if kind is None or f'containerName="{one.name}"' not in line.message:
            continue
        if facts.now_s - line.at_s > PROBE_KILLS_S:
            break
        said = re.search(r'output="((?:[^"\\]|\\.)*)"', line.message)
        answer = f" ({' '.join(said[1].split())[:200]})" if said and said[1] else ""
        is_running = one.state == "running"
        head = "is running, but" if is_running else "is not running:"
        text = (
            f"{head} container {quote(one.name)} is killed again and again, as its"
            f" {kind[1].lower()} probe fails{answer}: {_restarts(one)}"
        )
        advice = "correct what the probe asks for, or give it more time (initialDelaySeconds)"
        weight = Weight.WARNING if is_running else Weight.SERIOUS
        return Finding("liveness", weight, text, advice, 82)
    return None


def _ended(one: Container, name: str, logs: str, last: str) -> Finding:
    if one.reason == "OOMKilled":
        text = f"is not running: {name} was OOM-killed: it exceeded its memory limit"
        advice = f"raise the limit, or find what uses the memory: {logs}"
        return Finding(
            "out-of-memory", Weight.SERIOUS, f"{text} ({_restarts(one)}){last}", advice, 81
        )
    if is_bad_command(one.message):
        text = f"is not running: the command of {name} cannot be run: {shortened(one.message)}"
        advice = "correct the container's command, or its image"
        return Finding("bad-command", Weight.SERIOUS, text, advice, 82)
    if NO_SPACE in one.message:
        text = f"is not running: there is no space left to start {name}: {shortened(one.message)}"
        return Finding("disk-full", Weight.SERIOUS, text, FREE_SPACE, 95)
    if one.message and one.reason in ("StartError", "ContainerCannotRun"):
        text = f"is not running: {name} cannot be started: {shortened(one.message)}"
        return Finding("start-error", Weight.SERIOUS, text, "correct the pod's configuration", 82)
    if one.waiting == "CrashLoopBackOff" or one.has_crashed_before or one.restarts:
        text = f"is not running: {name} crashes again and again: {_restarts(one)}{last}"
        return Finding("crash-loop", Weight.SERIOUS, text, logs, 80)
    code = f"exit code {one.exit_code}{exit_words(one.exit_code)}"
    text = f"is not running: {name} has ended: {code}{last}"
    return Finding("crashed", Weight.SERIOUS, text, logs, 79)


def _restarts(one: Container) -> str:
    words = exit_words(one.exit_code) if one.reason != "OOMKilled" else ""
    return f"exit code {one.exit_code}{words}, {plural(one.restarts, 'restart')}"


# Probes


def _probes(facts: PodFacts) -> Iterator[Finding]:
    running = [one for one in facts.containers if one.state == "running"]
    is_ready = bool(running) and all(one.is_ready for one in running)
    probes = [
        line
        for line in facts.journal
        if "Probe failed" in line.message
        and facts.now_s - line.at_s < _PROBE_S
        and not (is_ready and 'probeType="Readiness"' in line.message)  # it succeeds again
    ]
    if probes:
        kind = re.search(r'probeType="(\w+)"', probes[-1].message)
        what = f"its {kind[1].lower()} probe" if kind else "a probe"
        # An Event may stand for many failures.
        times = plural(len(probes), "time") if probes[-1].unit != "event" else "at least once"
        text = f"is not healthy: {what} fails ({times} in the last 5 minutes)"
        yield Finding("probe", Weight.WARNING, text, "check what the probe asks for", 65)
        return
    for one in running:
        if one.is_ready is False:
            text = f"is not ready: container {quote(one.name)} runs, but its probe does not succeed"
            advice = f"check what the probe asks for; 'pycrictl logs {one.id[:13]}' shows its log"
            yield Finding("probe", Weight.WARNING, text, advice, 64, one.name)


def _as_pods(finding: Finding) -> Finding:
    return finding._replace(text=f"is not running, and {finding.text}")


def _names(containers: list[Container]) -> str:
    return ", ".join(quote(one.name) for one in containers)
