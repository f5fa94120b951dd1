"""What is wrong with a node: findings from its facts, the most serious first. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pycrictl.base.units import format_duration
from pycrictl.diagnosis.findings import (
    Disk,
    Finding,
    Missing,
    RuntimeCondition,
    Weight,
    disk_findings,
    document_with,
    no_sandbox_image,
    ranked,
)
from pycrictl.diagnosis.registry import CREDENTIALS, Route
from pycrictl.pulls.registries.registry_client import NO_ANSWER

SKEW_S: Final = 30.0
BAD_SKEW_S: Final = 300.0
"""A clock that is off by this much makes fresh certificates and tokens invalid."""

NEEDED: Final = ("RuntimeReady", "NetworkReady")
"""Conditions without which the kubelet reports its node not ready; others are only notes."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """All known facts about a node; None and empty mean unknown.

    ``silent`` are calls without a response in time, ``conditions`` those of the runtime that fail.
    ``kubelet_limit`` is 0 for no limit. ``routes`` are in the order in which the runtime asks the
    servers of a registry, unless ``registry_doubt`` says why that order is not known.
    ``ignored_config_path`` lists several folders, which containerd takes for one path.
    """

    endpoint: str = ""
    problem: str = ""
    is_forbidden: bool = False
    silent: tuple[str, ...] = ()
    runtime: str = ""
    missing_sandbox_image: str = ""
    conditions: tuple[RuntimeCondition, ...] = ()
    disks: tuple[Disk, ...] = ()
    kubelet_config: str = ""
    kubelet_limit: int | None = None
    kubelet_endpoints: tuple[str, str] = ("", "")
    proxy: str = ""
    proxy_upstream: str = ""
    proxy_limit: int | None = None
    routes: tuple[Route, ...] = ()
    registry_doubt: str = ""
    ignored_config_path: str = ""
    missing: tuple[Missing, ...] = ()


def examine(facts: NodeFacts) -> list[Finding]:
    """Return the findings: the most serious first, else in the order of the rules."""
    findings = [
        *_runtime(facts),
        *disk_findings(facts.disks),
        *_proxy(facts),
        *_clock(facts),
        *_registries(facts),
        *_settings(facts),
    ]
    return ranked(findings)


def document(facts: NodeFacts) -> dict[str, Any]:
    findings = examine(facts)
    serious = sum(finding.weight is Weight.SERIOUS for finding in findings)
    return document_with(serious=serious, findings=findings, facts=facts)


def _runtime(facts: NodeFacts) -> Iterator[Finding]:
    service = "crio" if "crio" in facts.endpoint else "containerd"
    if facts.is_forbidden:
        text = f"the runtime could not be examined: {facts.problem}"
        advice = "run pycrictl as root; other unavailable sources are listed below"
        yield Finding("not-allowed", Weight.SERIOUS, text, advice)
    elif not facts.endpoint:
        advice = "'systemctl status containerd' (or crio) shows whether the runtime is running"
        yield Finding("runtime-down", Weight.SERIOUS, facts.problem, advice)
    if facts.silent:
        text = f"the runtime at {facts.endpoint} does not answer: {', '.join(facts.silent)}"
        advice = (
            f"'journalctl -u {service} -n 50' may say why; 'systemctl restart {service}' leaves"
            " containers running"
        )
        yield Finding("runtime-hung", Weight.SERIOUS, text, advice)
    for condition, why in facts.conditions:
        advice = "'pycrictl info' shows the runtime's status"
        if condition == "NetworkReady":
            advice = "install or start a CNI plugin; /etc/cni/net.d holds its configuration"
        text = f"the runtime says that {condition} does not hold: {why}"
        is_needed = condition in NEEDED
        weight = Weight.SERIOUS if is_needed else Weight.NOTE
        yield Finding("condition", weight, text, advice)
    if name := facts.missing_sandbox_image:
        yield no_sandbox_image(name)


def _clock(facts: NodeFacts) -> Iterator[Finding]:
    skews = [route.skew_s for route in facts.routes if route.skew_s is not None]
    skew_s = min(skews, key=abs, default=0.0)
    if abs(skew_s) > SKEW_S:
        weight = Weight.SERIOUS if abs(skew_s) > BAD_SKEW_S else Weight.WARNING
        how = "ahead of" if skew_s > 0 else "behind"
        text = f"the clock is {format_duration(round(abs(skew_s)))} {how} the registry's"
        advice = "start an NTP client, such as chrony or systemd-timesyncd"
        yield Finding("clock", weight, text, advice)


def _settings(facts: NodeFacts) -> Iterator[Finding]:
    where = facts.kubelet_config or "the kubelet's configuration"
    limit = facts.kubelet_limit
    if limit == 1 and facts.proxy_limit not in (None, 1):
        text = "the kubelet pulls one image at a time, so the proxy's limit is never reached"
        advice = f"set serializeImagePulls: false in {where} and restart the kubelet"
        yield Finding("kubelet-serial", Weight.WARNING, text, advice)
    elif limit == 1:
        text = "the kubelet pulls one image at a time: one slow image holds all others up"
        advice = f"set serializeImagePulls: false and maxParallelImagePulls: 3 in {where}"
        yield Finding("kubelet-serial", Weight.NOTE, text, advice)
    elif limit == 0 and not facts.proxy:
        text = "the kubelet pulls any number of images at once, and nothing else limits that"
        advice = f"set maxParallelImagePulls in {where}, or run 'pycrictl proxy'"
        yield Finding("no-limit", Weight.WARNING, text, advice)


def _proxy(facts: NodeFacts) -> Iterator[Finding]:
    runtime, images = (endpoint.removeprefix("unix://") for endpoint in facts.kubelet_endpoints)
    if not facts.proxy:
        for endpoint in (runtime, images):
            if "pycrictl" in endpoint:
                text = f"the kubelet is configured to use the proxy at {endpoint}, which is not up"
                advice = "'systemctl start pycrictl-proxy', then look at its log"
                yield Finding("proxy-down", Weight.SERIOUS, text, advice)
                return
        return
    used = [name for name, at in (("runtime", runtime), ("image", images)) if at == facts.proxy]
    if used == ["runtime"]:
        text = "the kubelet uses the proxy as runtime endpoint only: pulls do not go through it"
        advice = f"set imageServiceEndpoint: unix://{facts.proxy}"
        yield Finding("proxy-half", Weight.WARNING, text, advice)
    elif not used and runtime:
        text = f"a proxy runs at {facts.proxy}, but the kubelet does not use it"
        advice = f"set containerRuntimeEndpoint: unix://{facts.proxy} in {facts.kubelet_config}"
        yield Finding("proxy-unused", Weight.WARNING, text, advice)


_ADVICE: Final = {
    "dns": "check the name, /etc/resolv.conf and the name servers",
    "tcp": "check routes and firewalls, and whether the registry is running",
    "tls": "put the registry's CA into certs.d, or renew its certificate",
    "auth": "check the address: this does not speak the registry's protocol",
    "first byte": "check the name of the repository, and the registry's log",
}


def _registries(facts: NodeFacts) -> Iterator[Finding]:
    if path := facts.ignored_config_path:
        text = f"containerd reads no hosts.toml: it takes config_path, {path}, as one directory"
        first = path.partition(":")[0]
        advice = f'set config_path = "{first}" in its configuration, and restart it'
        yield Finding("config-path", Weight.WARNING, text, advice)
    for place, route in enumerate(facts.routes):
        if (step := route.failure) is None:
            continue
        same = [
            (n, other) for n, other in enumerate(facts.routes) if other.registry == route.registry
        ]
        used = next((n for n, other in same if other.works), None)
        subject = f"mirror {route.url} of {route.registry}" if route.is_mirror else route.url
        through = f" through the proxy {route.proxy}" if route.proxy else ""
        name = step.name.upper() if len(step.name) == 3 else step.name
        text = f"{subject} fails at {name}{through}: {step.text}"
        weight, advice = Weight.SERIOUS, _ADVICE[step.name]
        if step.text == NO_ANSWER and step.name not in ("dns", "tcp"):
            advice = "it accepts connections but is silent: check it and any proxy in front of it"
        if step.text.startswith(CREDENTIALS):
            advice = "renew them; 'pycrictl pull --no-credentials' leaves them out"
        if through and step.name in ("dns", "tcp"):
            advice = "check the proxy: the runtime has it from its environment"
        if facts.registry_doubt:
            weight = Weight.NOTE
            text += f"; whether the runtime connects in this way is unknown: {facts.registry_doubt}"
        elif used is not None:
            weight = Weight.WARNING if place < used else Weight.NOTE
            text += f"; pulls {'go on to' if place < used else 'use'} {facts.routes[used].url}"
        yield Finding("registry", weight, text, advice)
