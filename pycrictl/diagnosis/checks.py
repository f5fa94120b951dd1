"""The checks of causes: each tells from the facts whether a cause holds. Pure.

A check takes facts of a pod and an item (a container, an image, the pod), or facts of another
subject and None. It returns a detail for the cause's sentence, or whether the cause holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from pycrictl.base.units import age_in_words, format_duration, plural, quote
from pycrictl.diagnosis.error_causes import BAD_COMMAND, pull_cause, sandbox_words, shortened
from pycrictl.diagnosis.facts import Container, Image, PodFacts
from pycrictl.kube.kubelet_log import Sign
from pycrictl.pulls.sources.failures import REASONS as REASONS

Check = Callable[[Any, Any], object]

RESTART_S: Final = 600.0
"""A container running for this long since its last crash is healthy, as it is for the kubelet."""

PROBE_S: Final = 300.0
LIVENESS_S: Final = 60.0
"""How long a failed probe counts if the kubelet's view of the container is unknown (PROBE_S), or if
the container otherwise runs well (LIVENESS_S), as the kubelet reports each failure."""

PROBE_KILLS_S: Final = 900.0
"""How long a failed probe or hook counts as the cause of a kill, as restarts take a while."""

PATIENCE_S: Final = 60.0
"""How long the creation, scheduling and deletion of pods may take without being reported."""

NOT_STARTED: Final = ("StartError", "ContainerCannotRun")
"""Exit reasons of containers that could not start; their message is the runtime's error."""

_KILLED: Final = (137, 143, 255)
"""Exit codes of containers that the kubelet killed, or whose sandbox was removed."""


def said(kind: str) -> Check:
    """Return the text of the last sign of a kind, with the container that it is about."""

    def holds(facts: PodFacts, _: object) -> object:
        sign = facts.last(kind)
        if sign is None:
            return False
        return ": ".join(filter(None, (sign.name and quote(sign.name), shortened(sign.text))))

    return holds


def noun(container: Container) -> str:
    kind = {"init": "init container", "sidecar": "sidecar"}.get(container.role, "container")
    return f"{kind} {quote(container.name)}"


# The pod's node, and the pod as a whole


def running(facts: PodFacts) -> list[Container]:
    return [container for container in facts.containers if container.state == "running"]


def takes_long_to_end(facts: PodFacts, _: object) -> object:
    asked_s = facts.api.deletion_s - facts.api.grace_s
    names = ", ".join(noun(container) for container in running(facts))
    reason = f"still running: {names}" if names else "the kubelet has not finished"
    age = age_in_words(facts.now_s - asked_s)
    limit = f"with a grace period of {format_duration(facts.api.grace_s)}"
    return facts.now_s - asked_s > PATIENCE_S and f"{age}, {limit}: {reason}"


def waits_for_claims(facts: PodFacts, _: object) -> object:
    if "unbound immediate PersistentVolumeClaims" not in facts.api.unscheduled:
        return False
    names = [f"{claim.name} ({claim.binding_error})" for claim in facts.unbound]
    return ", ".join(names) or "its claims are not bound"


def no_node_takes_it(facts: PodFacts, _: object) -> object:
    """Return what nodes lack, the most frequent first, and which nodes are closed to pods."""
    summary, _, reasons = facts.api.unscheduled.partition(": ")
    counted = re.findall(r"(\d+) ([^,]+)", reasons)
    counted.sort(key=lambda pair: -int(pair[0]))
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


def kubelet_ended_it(*reasons: str) -> Check:
    """Return a check: whether the kubelet ended the pod for a reason that begins with one of these.

    Its result is the kubelet's message.
    """

    def holds(facts: PodFacts, _: object) -> object:
        is_so = facts.phase == "Failed" and facts.api.reason.startswith(reasons)
        return is_so and (facts.api.message or facts.api.reason)

    return holds


# The sandbox, and volumes

NETWORK: Final = r"network (?:info )?for sandbox|\bcni\b|plugin type="


def _sandbox_error(facts: PodFacts) -> str:
    """Return the last error of creating the sandbox.

    Errors about a reserved name are skipped: the earlier failure that left the name is the cause.
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


def sandbox_fails(pattern: str) -> Check:
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
    runs = [
        (container.state, container.exit_code) for container in facts.containers if container.state
    ]
    was_taken = any(state != "exited" or code in _KILLED for state, code in runs)
    return bool(facts.phase) or was_taken or not runs


MISSING_OBJECT: Final = (
    r'(?P<kind>configmap|secret|persistentvolumeclaim)s? \\*"(?P<name>[^"\\]+)\\*" not found'
)


def mount_fails(facts: PodFacts, _: object) -> object:
    if facts.has_ended or any(container.state for container in facts.containers):
        return False
    sign = facts.last("mount") or facts.last("unmounted")
    return sign is not None and f"{quote(sign.name)} cannot be mounted: {shortened(sign.text)}"


# Images


def is_pulled(_: PodFacts, image: Image) -> bool:
    """Return whether an image is being pulled, or waits in line for that.

    After a failure, a running pull counts only once bytes arrive: it may fail at once, too.
    """
    pull = image.pull
    return pull is not None and bool(pull.has_bytes or pull.place or not image.failure)


def pull_is_stalled(facts: PodFacts, image: Image) -> object:
    stalled_s = image.pull.sums.stalled_s if image.pull is not None else 0.0
    return is_pulled(facts, image) and stalled_s and format_duration(int(stalled_s))


def is_refused(image: Image) -> bool:
    return bool(image.failure) and pull_cause(image.failure).kind == "unauthorized"


# Containers


def is_unsettled(facts: PodFacts, container: Container) -> bool:
    """Return whether a container that has run only for a short time may soon crash again.

    Either it is not ready, or it has restarted more than once and its previous run was short, too.
    So a ready container is healthy after a single restart, such as that after a reboot.
    """
    is_young = container.state == "running" and facts.now_s - container.started_s <= RESTART_S
    is_last_exit_known = container.restarts and container.finished_s
    if not is_young or not is_last_exit_known:
        return False
    return container.is_ready is False or (container.restarts > 1 and container.ran_s < RESTART_S)


def has_ended(facts: PodFacts, container: Container) -> bool:
    """Return whether the last exit of a container counts: not if it ended with its sandbox."""
    is_gone = facts.sandbox is not None and not facts.sandbox.is_ready
    if is_gone and container.exit_code in _KILLED and container.reason != "OOMKilled":
        return False
    return container.state == "exited" or is_unsettled(facts, container)


def has_failed(facts: PodFacts, container: Container) -> bool:
    is_bad = container.exit_code != 0 or container.reason not in ("", "Completed")
    return is_bad and has_ended(facts, container)


def was_killed(facts: PodFacts, container: Container) -> bool:
    is_kill = container.exit_code in _KILLED and container.reason != "OOMKilled"
    return is_kill and has_failed(facts, container)


def post_start_fails(facts: PodFacts, container: Container) -> object:
    sign = facts.last("post-start", container.name) if was_killed(facts, container) else None
    if sign is None or facts.now_s - sign.at_s > PROBE_KILLS_S:
        return False
    error = re.search(r'error: (.*?): , message: "(.*?) ?"', sign.text)
    return f" ({error[1]}: {error[2]})" if error else True


def _failure(sign: Sign, container: Container | None = None) -> str:
    whose = f" of {noun(container)}" if container is not None else ""
    output = f" ({sign.text[:200]})" if sign.text else ""
    return f"{sign.probe} probe{whose} fails{output}"


def probe_kills(facts: PodFacts, container: Container) -> object:
    sign = (
        facts.last("probe", container.name, "liveness startup")
        if was_killed(facts, container)
        else None
    )
    return sign is not None and facts.now_s - sign.at_s < PROBE_KILLS_S and _failure(sign)


def probe_fails(probe: str) -> Check:
    """Return a check: a probe's last failure in this run, unless the kubelet's view rules it out.

    If the kubelet says that the container has not started or is not ready, the failure may be old,
    as Events become rare. If it says the opposite, a failure is over, however recent.
    """

    def holds(facts: PodFacts, container: Container) -> object:
        state = container.is_started if probe == "startup" else container.is_ready
        if container.state != "running" or state or container.role == "init":
            return False
        sign, passed = (
            facts.last("probe", container.name, probe),
            facts.last("probe-passed", "", probe),
        )
        if sign is None or sign.at_s < int(container.started_s):
            return state is False and f"{probe} probe of {noun(container)} has not succeeded yet"
        is_over = passed is not None and passed.at_s > sign.at_s
        is_recent = facts.now_s - sign.at_s < PROBE_S and not is_over
        return (state is False or is_recent) and _failure(sign, container)

    return holds


def liveness_fails(facts: PodFacts, container: Container) -> object:
    sign = facts.last("probe", container.name, "liveness") if container.state == "running" else None
    since_s = max(container.started_s, facts.now_s - LIVENESS_S)
    return sign is not None and sign.at_s > since_s and _failure(sign, container)


def cannot_start(pattern: str) -> Check:
    def holds(facts: PodFacts, container: Container) -> object:
        is_error = container.reason in NOT_STARTED
        is_error |= re.search(BAD_COMMAND, container.message) is not None
        is_so = is_error and re.search(pattern, container.message)
        return is_so and has_failed(facts, container) and shortened(container.message)

    return holds


def cannot_be_made(_: PodFacts, container: Container) -> object:
    errors = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
    is_so = container.waiting in errors and container.state != "running"
    return is_so and shortened(container.waiting_message)


def ends_with_zero(facts: PodFacts, container: Container) -> object:
    """Return whether a container that the kubelet always restarts has ended with exit code 0.

    Without the API server, a second run after exit code 0 shows that the kubelet restarts it.
    """
    if container.exit_code or not has_ended(facts, container) or facts.has_ended:
        return False
    is_kept = facts.pod is None and container.restarts > 0 and not container.has_crashed_before
    is_always = facts.pod is not None and facts.pod.restart_policy == "Always"
    return is_kept or container.role == "sidecar" or (is_always and container.role == "app")


def keeps_crashing(facts: PodFacts, container: Container) -> object:
    is_again = (
        container.waiting == "CrashLoopBackOff"
        or container.has_crashed_before
        or container.restarts > 0
    )
    return is_again and has_failed(facts, container)


def age_of_running(facts: PodFacts, _: object) -> object:
    since_s = [container.started_s for container in running(facts)]
    if not since_s or facts.phase == "Succeeded":
        return False
    age = age_in_words(max(facts.now_s - min(since_s), 0.0))
    return f"{plural(len(since_s), 'container')}, for {age}"
