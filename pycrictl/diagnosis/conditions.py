"""The conditions of causes: each tells from the facts whether it holds. Pure.

A condition takes the facts of a pod and the item in question (a container, an image, the pod), or
another subject and nothing. It returns a detail for the cause's sentence, or whether it holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from pycrictl.base.units import age_in_words, format_duration, plural, quote
from pycrictl.diagnosis.facts import Container, Image, PodFacts
from pycrictl.diagnosis.troubles import BAD_COMMAND, pull_trouble, sandbox_words, shortened
from pycrictl.kube.kubelet_log import Sign
from pycrictl.pulls.sources.failures import REASONS as REASONS

Condition = Callable[[Any, Any], object]

RESTART_S: Final = 600.0
"""A container running for this long since its last crash is healthy, as it is for the kubelet."""

PROBE_S: Final = 300.0
LIVENESS_S: Final = 60.0
"""How long a failed probe counts if the kubelet's view of the container is unknown, and how long if
the container is running otherwise well: the kubelet reports each failure."""

PROBE_KILLS_S: Final = 900.0
"""How long a failed probe or hook counts as the cause of a kill, as restarts take a while."""

PATIENCE_S: Final = 60.0
"""How long the creation, scheduling and deletion of pods may take without being noticed."""

NOT_STARTED: Final = ("StartError", "ContainerCannotRun")
"""Reasons of runs that could not begin, so that their message is the runtime's error."""

_KILLED: Final = (137, 143, 255)
"""Exit codes of containers that the kubelet killed, or whose sandbox was removed."""


def said(kind: str) -> Condition:
    """Return the text of the last sign of a kind, with the container that it is about."""

    def holds(facts: PodFacts, _: object) -> object:
        sign = facts.last(kind)
        if sign is None:
            return False
        return ": ".join(filter(None, (sign.name and quote(sign.name), shortened(sign.text))))

    return holds


def noun(one: Container) -> str:
    kind = {"init": "init container", "sidecar": "sidecar"}.get(one.role, "container")
    return f"{kind} {quote(one.name)}"


# The pod's node, and the pod as a whole


def running(facts: PodFacts) -> list[Container]:
    return [one for one in facts.containers if one.state == "running"]


def takes_long_to_end(facts: PodFacts, _: object) -> object:
    asked_s = facts.api.deletion_s - facts.api.grace_s
    names = ", ".join(noun(one) for one in running(facts))
    what = f"{names} still runs" if names else "the kubelet is not done"
    age = f"for {age_in_words(facts.now_s - asked_s)}"
    limit = f"of a grace period of {format_duration(facts.api.grace_s)}"
    return facts.now_s - asked_s > PATIENCE_S and f"{age} {limit}: {what}"


def waits_for_claims(facts: PodFacts, _: object) -> object:
    if "unbound immediate PersistentVolumeClaims" not in facts.api.unscheduled:
        return False
    names = [f"{one.name} ({one.binding_error})" for one in facts.unbound]
    return ", ".join(names) or "its claims are not bound"


def no_node_takes_it(facts: PodFacts, _: object) -> object:
    """Return what nodes lack, most of them first, and which of them are closed to pods."""
    summary, _, reasons = facts.api.unscheduled.partition(": ")
    counted = re.findall(r"(\d+) ([^,]+)", reasons)
    counted.sort(key=lambda one: -int(one[0]))
    words = f"{summary}: {', '.join(map(' '.join, counted)) or reasons}"
    closed = [f"{node.name} {why}" for node in facts.closed for why in node.refusals]
    return summary and (f"{words} ({', '.join(closed[:5])})" if closed else words)


def no_scheduler_answers(facts: PodFacts, _: object) -> object:
    is_old = facts.now_s - facts.api.created_s > PATIENCE_S
    is_open = facts.phase == "Pending" and not facts.api.node and not facts.api.unscheduled
    return is_open and is_old and quote(facts.api.scheduler)


REJECTIONS: Final = (
    "UnexpectedAdmissionError NodeAffinity NodeName NodePorts NodeShutdown Taints AppArmor"
    " SysctlForbidden TopologyAffinityError InvalidNodeInfo PodOSNotSupported OutOf".split()
)
"""The kubelet's reasons for rejecting a pod (``lifecycle.PodAdmitHandler``)."""


def kubelet_ended_it(*reasons: str) -> Condition:
    """Return why the kubelet ended the pod, if the reason starts with one of these."""

    def holds(facts: PodFacts, _: object) -> object:
        is_so = facts.phase == "Failed" and facts.api.reason.startswith(reasons)
        return is_so and (facts.api.message or facts.api.reason)

    return holds


# The sandbox, and volumes

NETWORK: Final = r"network (?:info )?for sandbox|\bcni\b|plugin type="


def _sandbox_error(facts: PodFacts) -> str:
    """Return the last error of creating the sandbox.

    A reserved name is left over from an earlier failure, which is the actual cause.
    """
    error = ""
    if facts.sandbox is not None and facts.sandbox.is_ready:
        return error
    for sign in reversed(facts.signs):
        if sign.kind == "sandbox-made":
            break
        if sign.kind == "sandbox":
            error = sign.text
            if "failed to reserve sandbox name" not in error:
                break
    return error


def sandbox_fails(pattern: str) -> Condition:
    def holds(facts: PodFacts, _: object) -> object:
        error = _sandbox_error(facts)
        return re.search(pattern, error) and shortened(error)

    return holds


def lacks_sandbox_image(facts: PodFacts, _: object) -> object:
    words = sandbox_words(_sandbox_error(facts))
    return words is not None and words.text


def sandbox_is_gone(facts: PodFacts, _: object) -> object:
    if facts.sandbox is None or facts.sandbox.is_ready or facts.has_ended:
        return False
    runs = [(one.state, one.exit_code) for one in facts.containers if one.state]
    was_taken = any(state != "exited" or code in _KILLED for state, code in runs)
    return bool(facts.phase) or was_taken or not runs


MISSING_OBJECT: Final = (
    r'(?P<kind>configmap|secret|persistentvolumeclaim)s? \\*"(?P<name>[^"\\]+)\\*" not found'
)


def mount_fails(facts: PodFacts, _: object) -> object:
    if facts.has_ended or any(one.state for one in facts.containers):
        return False
    sign = facts.last("mount") or facts.last("unmounted")
    return sign is not None and f"{quote(sign.name)} cannot be mounted: {shortened(sign.text)}"


# Images


def is_pulled(_: PodFacts, image: Image) -> bool:
    """Return whether an image is on its way.

    Until bytes arrive, the last error counts: an attempt may end at once, like those before.
    """
    pull = image.pull
    return pull is not None and bool(pull.has_bytes or pull.place or not image.failure)


def pull_is_stalled(facts: PodFacts, image: Image) -> object:
    stalled_s = image.pull.sums.stalled_s if image.pull is not None else 0.0
    return is_pulled(facts, image) and stalled_s and format_duration(int(stalled_s))


def is_refused(image: Image) -> bool:
    return bool(image.failure) and pull_trouble(image.failure).kind == "unauthorized"


# Containers


def is_unsettled(facts: PodFacts, one: Container) -> bool:
    """Return whether a container that runs may soon crash again.

    It has restarted more than once after short runs, or has not become ready since. After a single
    restart, as after one of the node, a container that is ready is healthy.
    """
    is_young = one.state == "running" and facts.now_s - one.started_s <= RESTART_S
    if not is_young or not one.restarts or not one.finished_s:  # else its last exit is unknown
        return False
    return one.is_ready is False or (one.restarts > 1 and one.ran_s < RESTART_S)


def has_ended(facts: PodFacts, one: Container) -> bool:
    """Return whether the last exit of a container counts: not if it ended with its sandbox."""
    is_gone = facts.sandbox is not None and not facts.sandbox.is_ready
    if is_gone and one.exit_code in _KILLED and one.reason != "OOMKilled":
        return False
    return one.state == "exited" or is_unsettled(facts, one)


def has_failed(facts: PodFacts, one: Container) -> bool:
    is_bad = one.exit_code != 0 or one.reason not in ("", "Completed")
    return is_bad and has_ended(facts, one)


def was_killed(facts: PodFacts, one: Container) -> bool:
    is_kill = one.exit_code in _KILLED and one.reason != "OOMKilled"
    return is_kill and has_failed(facts, one)


def post_start_fails(facts: PodFacts, one: Container) -> object:
    sign = facts.last("post-start", one.name) if was_killed(facts, one) else None
    if sign is None or facts.now_s - sign.at_s > PROBE_KILLS_S:
        return False
    error = re.search(r'error: (.*?): , message: "(.*?) ?"', sign.text)
    return f" ({error[1]}: {error[2]})" if error else True


def _failure(sign: Sign, one: Container | None = None) -> str:
    whose = f" of {noun(one)}" if one is not None else ""
    output = f" ({sign.text[:200]})" if sign.text else ""
    return f"{sign.probe} probe{whose} fails{output}"


def probe_kills(facts: PodFacts, one: Container) -> object:
    sign = facts.last("probe", one.name, "liveness startup") if was_killed(facts, one) else None
    return sign is not None and facts.now_s - sign.at_s < PROBE_KILLS_S and _failure(sign)


def probe_fails(probe: str) -> Condition:
    """Return the last failure of a probe during this run, if the kubelet's view allows for one.

    If the kubelet says that the container has not started or is not ready, the failure may be old:
    Events become rare. If it says that it is, a failure is over, however recent.
    """

    def holds(facts: PodFacts, one: Container) -> object:
        state = one.is_started if probe == "startup" else one.is_ready
        if one.state != "running" or state or one.role == "init":
            return False
        sign, passed = facts.last("probe", one.name, probe), facts.last("probe-passed", "", probe)
        if sign is None or sign.at_s < int(one.started_s):
            return state is False and f"{probe} probe of {noun(one)} has not succeeded yet"
        is_over = passed is not None and passed.at_s > sign.at_s
        is_recent = facts.now_s - sign.at_s < PROBE_S and not is_over
        return (state is False or is_recent) and _failure(sign, one)

    return holds


def liveness_fails(facts: PodFacts, one: Container) -> object:
    sign = facts.last("probe", one.name, "liveness") if one.state == "running" else None
    since_s = max(one.started_s, facts.now_s - LIVENESS_S)
    return sign is not None and sign.at_s > since_s and _failure(sign, one)


def cannot_start(pattern: str) -> Condition:
    def holds(facts: PodFacts, one: Container) -> object:
        is_error = one.reason in NOT_STARTED
        is_error |= re.search(BAD_COMMAND, one.message) is not None
        is_so = is_error and re.search(pattern, one.message)
        return is_so and has_failed(facts, one) and shortened(one.message)

    return holds


def cannot_be_made(_: PodFacts, one: Container) -> object:
    errors = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
    is_so = one.waiting in errors and one.state != "running"
    return is_so and shortened(one.waiting_message)


def ends_with_zero(facts: PodFacts, one: Container) -> object:
    """Return whether a container ends, although the kubelet starts it again whenever it does.

    Without the API server, a second run after an exit with 0 shows that.
    """
    if one.exit_code or not has_ended(facts, one) or facts.has_ended:
        return False
    is_kept = facts.pod is None and one.restarts > 0 and not one.has_crashed_before
    is_always = facts.pod is not None and facts.pod.restart_policy == "Always"
    return is_kept or one.role == "sidecar" or (is_always and one.role == "app")


def may_be_debugger(facts: PodFacts, one: Container) -> object:
    """Return whether ``kubectl debug`` may have added a container, which never restarts.

    It is newer than all others, and they are running. Nothing else in the runtime tells.
    """
    others = [each for each in facts.containers if each is not one]
    older = [each for each in running(facts) if each.started_s + 1 < one.started_s]
    is_open = not one.role and not one.restarts and not one.waiting
    return is_open and others == older != [] and has_failed(facts, one)


def keeps_crashing(facts: PodFacts, one: Container) -> object:
    is_again = one.waiting == "CrashLoopBackOff" or one.has_crashed_before or one.restarts > 0
    return is_again and has_failed(facts, one)


def age_of_running(facts: PodFacts, _: object) -> object:
    since_s = [one.started_s for one in running(facts)]
    if not since_s or facts.phase == "Succeeded":
        return False
    age = age_in_words(max(facts.now_s - min(since_s), 0.0))
    return f"{plural(len(since_s), 'container')}, for {age}"
