"""The causes of what is wrong with pods, nodes, workloads and claims, in one table. Pure.

The order of the rows is their rank: a cause stands above its effects. For each item of a
topic, such as a container, only the first row that holds counts, so a row need not exclude the rows
above it. To add a cause, put a row where it belongs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from pycrictl.diagnosis import checks as c
from pycrictl.diagnosis.checks import Check
from pycrictl.diagnosis.error_causes import BAD_COMMAND, FREE_SPACE, NO_SPACE
from pycrictl.diagnosis.facts import Source
from pycrictl.diagnosis.findings import Weight

# What a check is about. DELETION: a pod that is being deleted, to which no topic after it applies;
# UNKNOWN: an unhealthy pod without any other cause; CALM: a healthy pod; DEBUG: a pod's containers
# of ``kubectl debug``.
Topic = Enum(
    "Topic",
    "NODE HOST DELETION POD CLAIM WORKLOAD SANDBOX VOLUME IMAGE CONTAINER PROBE GATE UNKNOWN CALM"
    " DEBUG",
)

# Where a cause can be found, and so where its advice has to help.
Side = Enum("Side", "NODE CLUSTER BOTH")


class Cause(NamedTuple):
    """A row of the table.

    Attributes:
        kind: a keyword for scripts.
        holds: the check; if its result is a text, that replaces ``{detail}`` in the texts.
        text: what is said of the pod, node, workload or claim, with words of ``pod.Wording``; some
            words differ between the node and a workstation.
        advice: what to do next; of several, the one whose pattern matches earliest in the detail.
        needs: the sources without which the check cannot decide.
    """

    kind: str
    topic: Topic
    weight: Weight
    holds: Check
    text: str
    advice: str | Mapping[str, str] = ""
    needs: tuple[Source, ...] = ()
    side: Side = Side.BOTH


_NOTE, _WARNING, _SERIOUS = Weight
_API, _JOURNAL, _NODES = (Source.API,), (Source.JOURNAL,), (Source.API, Source.NODES)

_CNI: Final = "check the CNI plugin's pods, /etc/cni/net.d and /opt/cni/bin"
_REFUSED: Final = "is not running: image {image}: the registry refuses"
_PROBE: Final = "check what the probe asks for; {log}"
_OWN_LIMIT: Final = r"exceeds the (?:total )?limit|exceeds the local ephemeral|exceeded its local"
_NO_NODE: Final = {
    "were unschedulable": "'kubectl uncordon NODE' lets a node take pods again",
    "affinity|selector|topology": "'kubectl get nodes --show-labels' shows their labels",
    "Insufficient|Too many pods": "'kubectl describe nodes' shows what is free; request less",
    r"untolerated taint.*has \w+Pressure": "'kubectl describe nodes' shows their conditions",
    "untolerated taint": "add a toleration, or remove the taint: 'kubectl taint node NODE KEY-'",
    "": "'kubectl describe nodes' shows what each node has",
}
_NOT_CREATED: Final = {
    "exceeded quota": "'kubectl describe quota -n {namespace}' shows its use; use less or raise it",
    "violates PodSecurity": "correct its pod template, or the namespace's label"
    " pod-security.kubernetes.io/enforce",
    "webhook": "'kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations' names"
    " the service that has to answer",
    "serviceaccount": "create the service account in namespace {namespace}, or correct its name",
    "(?:max|min)imum .* usage": "'kubectl describe limitrange -n {namespace}' shows the limits",
    "": "'kubectl describe {object}' shows each attempt",
}

# Rows of a table are easier to compare than the formatter's lines.
# fmt: off
CAUSES: Final = (
    Cause("node-gone", Topic.NODE, _SERIOUS, lambda node, _: not node.exists,
        "does not exist, but pods are still on it", "the cluster deletes the pods"),
    Cause("node-not-ready", Topic.NODE, _SERIOUS, lambda node, _: node.unready,
        "is not ready, {detail}", "{kubelet}"),
    Cause("node-pressure", Topic.NODE, _WARNING,
        lambda node, _: ", ".join(node.pressures),
        "has {detail}: it takes no new pods, and evicts some", "{doctor} what it is short of"),
    Cause("node-cordoned", Topic.NODE, _NOTE, lambda node, _: node.is_cordoned,
        "is cordoned: it takes no new pods", "'kubectl uncordon {node}' lets it take pods again"),
    Cause("node-gone", Topic.HOST, _SERIOUS, lambda f, _: not f.node.exists,
        "is not running: its node, {node}, does not exist any more",
        "'kubectl get nodes' lists the nodes; the cluster deletes the pod, and {successor}",
        _NODES, Side.CLUSTER),
    Cause("node-not-ready", Topic.HOST, _SERIOUS, lambda f, _: f.node.unready,
        "is on node {node}, which is not ready, {detail}",
        "'kubectl describe node {node}' shows its conditions; the pod's status may be outdated",
        _NODES, Side.CLUSTER),

    Cause("kill-failed", Topic.DELETION, _SERIOUS, c.said("kill"),
        "is being deleted, but cannot be stopped: {detail}", "{describe}"),
    Cause("finalizer", Topic.DELETION, _WARNING,
        lambda f, _: not c.running(f) and ", ".join(f.api.finalizers),
        "is being deleted, and waits for its finalizers: {detail}",
        "the controller that set a finalizer removes it when its work is done"),
    Cause("pre-stop", Topic.DELETION, _WARNING, c.said("pre-stop"),
        "is being deleted, and a preStop hook fails: {detail}",
        "correct the hook in the container's lifecycle"),
    Cause("terminating", Topic.DELETION, _WARNING, c.takes_long_to_end,
        "is still being deleted after {detail}",
        "a preStop hook, or what the container does at SIGTERM, takes that long"),
    Cause("terminating", Topic.DELETION, _NOTE, lambda f, _: True, "is being deleted"),

    Cause("gated", Topic.POD, _WARNING, lambda f, _: ", ".join(f.api.scheduling_gates),
        "is not running: it cannot be scheduled until its scheduling gates are removed:"
        " {detail}", "the controller that set a gate has to remove it", _API),
    Cause("no-claim", Topic.POD, _SERIOUS,
        lambda f, _: "".join(re.findall(r'persistentvol\S+ "[^"]*" not found', f.api.unscheduled)),
        "is not running: {detail}", "{missing}", _API),
    Cause("claim-unbound", Topic.POD, _SERIOUS, c.waits_for_claims,
        "is not running: it waits for volumes: {detail}",
        "'kubectl describe pvc -n {namespace}' says what the claims wait for", _API),
    Cause("unscheduled", Topic.POD, _SERIOUS, c.no_node_takes_it,
        "is not running: no node takes it: {detail}", _NO_NODE, _API),
    Cause("unscheduled", Topic.POD, _SERIOUS, c.no_scheduler_answers,
        "is not running: its scheduler, {detail}, has not scheduled it yet",
        "'kubectl get pods -n kube-system' shows whether it runs", _API),
    Cause("deadline", Topic.POD, _SERIOUS, c.kubelet_ended_it("DeadlineExceeded"),
        "is not running: it exceeded its activeDeadlineSeconds and was stopped",
        "raise that deadline, or find out what takes so long; {successor}", _API),
    Cause("evicted", Topic.POD, _SERIOUS, c.kubelet_ended_it("Evicted"),
        "is not running: the node has evicted it{message}",
        {_OWN_LIMIT: "raise that limit, or make the pod write less; {successor}",
         "": "{doctor} what the node is short of; {successor}"}, _API),
    Cause("evicted", Topic.POD, _SERIOUS,
        lambda f, _: f.pod is None and f.last("evicted"),
        "is not running: the journal says that the node has evicted it",
        "{doctor} what the node is short of", _JOURNAL, Side.NODE),
    Cause("rejected", Topic.POD, _SERIOUS, c.kubelet_ended_it(*c.REJECTIONS),
        "is not running: the kubelet rejects it ({reason}){message}",
        "the kubelet does not try again: free what the pod needs or correct the pod, then delete"
        " it, so that it is scheduled again", _API),
    Cause("ended", Topic.POD, _SERIOUS, c.kubelet_ended_it(""),
        "is not running: the kubelet has ended it ({reason}){message}", "{successor}", _API),

    Cause("claim-unbound", Topic.CLAIM, _WARNING, lambda claim, _: claim.binding_error,
        "has no volume: {detail}", "'kubectl get storageclass,pv' shows what there is"),
    Cause("not-created", Topic.WORKLOAD, _SERIOUS, lambda work, _: work.creation_error,
        "has {made} of {wanted} pods: {detail}", _NOT_CREATED),
    Cause("job-failed", Topic.WORKLOAD, _SERIOUS, lambda work, _: work.condition("Failed=True"),
        "has failed: {detail}", "'kubectl logs {object}' shows the log of a pod, if any is left"),
    Cause("rollout", Topic.WORKLOAD, _WARNING,
        lambda work, _: work.condition("Progressing=False/ProgressDeadlineExceeded"),
        "has a rollout that is stuck: {ready} of {wanted} pods are ready; {detail}",
        "'kubectl rollout undo {object}' returns to the previous version"),
    Cause("paused", Topic.WORKLOAD, _WARNING,
        lambda work, _: work.kind == "deployment" and work.is_suspended and work.lacks_pods,
        "is paused, and has {made} of {wanted} pods", "'kubectl rollout resume {object}'"),
    Cause("not-created", Topic.WORKLOAD, _WARNING,  # a StatefulSet makes one after another
        lambda work, _: work.lacks_pods and work.now_s - work.since_s > c.PATIENCE_S
        and not work.is_suspended and not (work.kind == "statefulset" and work.made),
        "has {made} of {wanted} pods, and no reason is known",
        "'kubectl describe {object}' may say more; kube-controller-manager creates them"),
    Cause("schedule", Topic.WORKLOAD, _WARNING,
        lambda work, _: work.kind == "cronjob" and " ".join(work.warnings[-1:]),
        "does not start its jobs: {detail}", "'kubectl describe {object}' shows its schedule"),
    Cause("suspended", Topic.WORKLOAD, _NOTE, lambda work, _: work.is_suspended, "is suspended"),
    Cause("healthy", Topic.WORKLOAD, _NOTE, lambda work, _: work.kind == "cronjob",
        "starts its jobs"),
    Cause("healthy", Topic.WORKLOAD, _NOTE, lambda work, _: True,
        "has {ready} of {wanted} pods ready"),

    Cause("kill-failed", Topic.SANDBOX, _SERIOUS,
        lambda f, _: c.sandbox_is_gone(f, _) and c.said("kill")(f, _),
        "is not running: its sandbox is not ready, and cannot be stopped: {detail}", "{describe}"),
    Cause("disk-full", Topic.SANDBOX, _SERIOUS, c.sandbox_fails(NO_SPACE),
        "is not running: there is no space left to make its sandbox ({detail})", FREE_SPACE),
    Cause("sandbox-image", Topic.SANDBOX, _SERIOUS, c.lacks_sandbox_image,
        "is not running: {detail}", "have the node pull it, or name another in the runtime's"
        " configuration (sandbox_image, in containerd 2 pinned_images.sandbox; in CRI-O"
        " pause_image)"),
    Cause("cni", Topic.SANDBOX, _SERIOUS, c.sandbox_fails(c.NETWORK),
        "is not running: its network cannot be set up: {detail}", _CNI),
    Cause("runtime-class", Topic.SANDBOX, _SERIOUS, c.sandbox_fails("no runtime for"),
        "is not running: its sandbox cannot be made: {detail}",
        "configure that runtime on the node, or correct the pod's runtimeClassName"),
    Cause("sandbox", Topic.SANDBOX, _SERIOUS, c.sandbox_fails("."),
        "is not running: its sandbox cannot be made: {detail}", "{describe}"),
    Cause("cni", Topic.SANDBOX, _SERIOUS,
        lambda f, _: f.sandbox is None and dict(f.problems).get("NetworkReady"),
        "is not running: the node's network is not ready: {detail}", _CNI),
    Cause("sandbox-gone", Topic.SANDBOX, _SERIOUS, c.sandbox_is_gone,
        "is not running: its sandbox is gone (no longer ready)",
        "the kubelet makes a new one; {describe}"),
    Cause("volume", Topic.VOLUME, _SERIOUS, c.mount_fails, "is not running: volume {detail}",
        {c.MISSING_OBJECT: "{missing}", "": "{describe}, and so may the storage driver's logs"}),

    Cause("queued", Topic.IMAGE, _WARNING, lambda f, image: image.pull and image.pull.place,
        "is waiting: image {image} is {place}{contrary}", "{queue}"),
    Cause("stalled", Topic.IMAGE, _SERIOUS, c.pull_is_stalled,
        "is waiting: the pull of image {image} has stalled for {detail}, {progress}{contrary}",
        "{connection}"),
    Cause("pulling", Topic.IMAGE, _WARNING, c.is_pulled,
        "is waiting: image {image} is being pulled, {progress}{contrary}", "{watch}"),
    Cause("unauthorized", Topic.IMAGE, _SERIOUS,
        lambda f, image: c.is_refused(image) and c.said("no-secret")(f, image),
        _REFUSED + " access, and the pod's pull secret {detail} does not exist ({error}){next_try}",
        "create the secret in namespace {namespace}, or correct its name"),
    Cause("unauthorized", Topic.IMAGE, _SERIOUS,
        lambda f, image: c.is_refused(image) and not f.api.pull_secrets,
        _REFUSED + " access, and the pod has no pull secret ({error}){next_try}",
        "name a pull secret of namespace {namespace} in the pod's imagePullSecrets", _API),
    Cause("unauthorized", Topic.IMAGE, _SERIOUS,
        lambda f, image: c.is_refused(image) and ", ".join(f.api.pull_secrets),
        _REFUSED + " the credentials in pull secret {detail} ({error}){next_try}",
        "correct the secret: its credential may be for another registry, or have expired", _API),
    Cause("{kind}", Topic.IMAGE, _SERIOUS, lambda f, image: image.failure,
        "is not running: image {image}: {cause} ({error}){next_try}", "{remedy}"),

    Cause("post-start", Topic.CONTAINER, _SERIOUS, c.post_start_fails,
        "{is} {container} keeps being killed because its postStart hook fails{detail}: {exit}",
        "correct the hook in the container's lifecycle; {last_log}"),
    Cause("liveness", Topic.CONTAINER, _SERIOUS, c.probe_kills,
        "{is} {container} keeps being killed because its {detail}: {exit}",
        "correct what the probe asks for, or give it more time (initialDelaySeconds)"),
    Cause("out-of-memory", Topic.CONTAINER, _SERIOUS,
        lambda f, item: item.reason == "OOMKilled" and c.has_failed(f, item),
        "{is} {container} was OOM-killed: it exceeded its memory limit ({exit}){evidence}",
        "raise the limit, or find what uses the memory: {last_log}"),
    Cause("disk-full", Topic.CONTAINER, _SERIOUS, c.cannot_start(NO_SPACE),
        "is not running: there is no space left to start {container}: {detail}", FREE_SPACE),
    Cause("bad-command", Topic.CONTAINER, _SERIOUS, c.cannot_start(BAD_COMMAND),
        "is not running: the command of {container} cannot be run: {detail}",
        "correct the container's command, or its image"),
    Cause("start-error", Topic.CONTAINER, _SERIOUS, c.cannot_start("."),
        "is not running: {container} cannot be started: {detail}",
        "correct the pod's configuration"),
    Cause("config", Topic.CONTAINER, _SERIOUS, c.cannot_be_made,
        "is not running: {container} cannot be made: {detail}",
        {c.MISSING_OBJECT: "{missing}", "": "correct the pod's configuration"}),
    Cause("keeps-ending", Topic.CONTAINER, _SERIOUS, c.ends_with_zero,
        "{is} {container} keeps ending with exit code 0, and its restartPolicy is Always:"
        " {restarts}{evidence}", "keep it running, or make it a Job; {last_log}"),
    Cause("crash-loop", Topic.CONTAINER, _SERIOUS, c.keeps_crashing,
        "{is} {container} keeps crashing: {exit}{evidence}", "{last_log}"),
    Cause("crashed", Topic.CONTAINER, _SERIOUS, c.has_failed,
        "is not running: {container} has ended: {exit}{evidence}", "{last_log}"),
    Cause("unknown-state", Topic.CONTAINER, _SERIOUS, lambda f, item: item.state == "unknown",
        "is not running: the runtime does not know the state of {container}", "{describe}"),
    Cause("init-running", Topic.CONTAINER, _WARNING,
        lambda f, item: item.role == "init" and item.state == "running",
        "is starting: {container} has been running for {age}{evidence}", "{log}"),
    Cause("probe", Topic.PROBE, _WARNING, c.probe_fails("startup"), "is not ready: the {detail}",
        _PROBE),
    Cause("probe", Topic.PROBE, _WARNING, c.probe_fails("readiness"), "is not ready: the {detail}",
        _PROBE),
    Cause("probe", Topic.PROBE, _WARNING, c.liveness_fails, "is running, but the {detail}", _PROBE),
    Cause("readiness-gate", Topic.GATE, _WARNING,
        lambda f, _: f.phase == "Running" and ", ".join(f.api.unmet_gates),
        "is not ready: its readiness gates are not met: {detail}",
        "the controllers of these conditions have not set them", _API),

    Cause("unknown", Topic.UNKNOWN, _WARNING, lambda f, _: f.sandbox is None,
        "is not running: it has no sandbox yet, and no error is known{unseen}", "{describe}"),
    Cause("unknown", Topic.UNKNOWN, _WARNING,
        lambda f, _: ", ".join(f'"{item.name}"' for item in f.containers if not item.started_s),
        "is not running: {detail} has not started, and no error is known{unseen}", "{describe}"),
    Cause("unknown", Topic.UNKNOWN, _WARNING, lambda f, _: True,
        "is not running, and no error is known{unseen}", "{describe}"),
    Cause("healthy", Topic.CALM, _NOTE, c.age_of_running, "is running: {detail}"),
    Cause("finished", Topic.CALM, _NOTE, lambda f, _: True, "has finished: exit code 0{ended}"),
    Cause("debug", Topic.DEBUG, _NOTE, lambda f, item: item.waiting in c.REASONS,
        "has a debug {container} that cannot start: {cause} ({error})", "{remedy}"),
)
# fmt: on

ROWS: Final = {
    topic: [(len(CAUSES) - at, cause) for at, cause in enumerate(CAUSES) if cause.topic is topic]
    for topic in Topic
}
"""The rows of each topic with their ranks; a cause of higher rank may be the cause of others."""
