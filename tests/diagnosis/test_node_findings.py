"""Findings about a node in recorded facts."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from pycrictl.diagnosis.findings import Disk, Missing, RuntimeCondition
from pycrictl.diagnosis.node_findings import NodeFacts, document, examine
from pycrictl.diagnosis.registry import Route, Step
from pycrictl.pulls.registries.registry_client import NO_ANSWER
from pycrictl.show.datatext import document_json
from pycrictl.show.diagnosis_text import write_node

GIB = 1 << 30
WELL: dict[str, Any] = {
    "endpoint": "unix:///run/containerd/containerd.sock",
    "runtime": "containerd 2.1.0",
    "disks": (Disk("/var/lib/containerd", "images", 100 * GIB, 50 * GIB, 100, 90),),
    "kubelet_config": "/var/lib/kubelet/config.yaml",
    "kubelet_limit": 3,
}
PROXY = "/run/pycrictl/cri.sock"


def route(*steps: Step, is_mirror: bool = False, skew_s: float | None = None) -> Route:
    url = "https://mirror.example" if is_mirror else "https://reg.example"
    return Route("reg.example", url, is_mirror, steps, skew_s)


GOOD = Step("tcp", True, "10.0.0.9 port 443 (1ms)")
BAD = Step("tls", False, "x509: certificate has expired")
CONFIG = WELL["kubelet_config"]


@pytest.mark.parametrize(
    ("more", "kind", "severity"),
    [
        ({"endpoint": "", "problem": "no container runtime answers"}, "runtime-down", "serious"),
        ({"conditions": (("NetworkReady", "no network config"),)}, "condition", "serious"),
        ({"silent": ("Status: no answer within 1.5s",)}, "runtime-hung", "serious"),
        (
            {"endpoint": "", "problem": "permission denied", "is_forbidden": True},
            "not-allowed",
            "serious",
        ),
        ({"conditions": (("ContainerdHasNoDeprecationWarnings", "…"),)}, "condition", "note"),
        ({"disks": (Disk("/d", "images", 100, 2),)}, "disk-full", "serious"),
        ({"disks": (Disk("/d", "images", 100, 0),)}, "disk-full", "serious"),
        ({"disks": (Disk("/d", "images", 100, 10),)}, "disk-pressure", "warning"),
        ({"disks": (Disk("/d", "images", 100, 90, 100, 0),)}, "disk-full", "serious"),
        ({"routes": (route(GOOD, skew_s=-90.0),)}, "clock", "warning"),
        ({"routes": (route(GOOD, skew_s=4000.0),)}, "clock", "serious"),
        ({"kubelet_limit": 1}, "kubelet-serial", "note"),
        (
            {
                "kubelet_limit": 1,
                "proxy": PROXY,
                "proxy_limit": 3,
                "kubelet_endpoints": (PROXY,) * 2,
            },
            "kubelet-serial",
            "warning",
        ),
        ({"kubelet_limit": 0}, "no-limit", "warning"),
        ({"kubelet_endpoints": (f"unix://{PROXY}",) * 2}, "proxy-down", "serious"),
        (
            {"proxy": PROXY, "kubelet_endpoints": (f"unix://{PROXY}", "unix:///c.sock")},
            "proxy-half",
            "warning",
        ),
        ({"proxy": PROXY, "kubelet_endpoints": ("/c.sock",) * 2}, "proxy-unused", "warning"),
        ({"routes": (route(GOOD, BAD),)}, "registry", "serious"),
        ({"routes": (route(GOOD, BAD, is_mirror=True), route(GOOD))}, "registry", "warning"),
        ({"routes": (route(GOOD, is_mirror=True), route(GOOD, BAD))}, "registry", "note"),
        ({"routes": (route(GOOD, BAD),), "registry_doubt": "why"}, "registry", "note"),
        ({"ignored_config_path": "/a:/b"}, "config-path", "warning"),
    ],
)
def test_each_finding(more: dict[str, Any], kind: str, severity: str) -> None:
    facts = NodeFacts(**WELL | more)
    (finding,) = document(facts)["findings"]
    assert (finding["kind"], finding["severity"]) == (kind, severity)
    assert finding["advice"]
    assert document(facts)["serious"] == (severity == "serious")


@pytest.mark.parametrize(
    ("step", "proxy", "advice"),
    [
        (Step("tcp", False, "connection refused"), "", "check routes and firewalls"),
        (Step("tcp", False, "connection refused"), "http://p:1", "check the proxy"),
        (Step("auth", False, "the credentials of x are refused"), "", "renew them"),
        (Step("auth", False, NO_ANSWER), "", "it accepts connections but is silent"),
    ],
)
def test_the_advice_on_a_registry(step: Step, proxy: str, advice: str) -> None:
    (finding,) = examine(NodeFacts(**WELL, routes=(route(step)._replace(proxy=proxy),)))
    assert finding.advice.startswith(advice)


def test_a_node_with_which_nothing_is_wrong() -> None:
    facts = NodeFacts(**WELL, routes=(route(GOOD, skew_s=1.0),))
    assert examine(facts) == []
    # Pulls through the proxy, containers not: a whole way to use it.
    image_only: dict[str, Any] = {
        "proxy": PROXY,
        "kubelet_endpoints": ("unix:///c.sock", f"unix://{PROXY}"),
    }
    assert examine(NodeFacts(**WELL, **image_only)) == []
    out = io.StringIO()
    write_node(document(facts), out)
    assert out.getvalue() == (
        "no problem was found on this node\n"
        "\n"
        "Runtime      containerd 2.1.0 at unix:///run/containerd/containerd.sock\n"
        "Kubelet      3 pulls at once; /var/lib/kubelet/config.yaml\n"
        "Disk         /var/lib/containerd (images): 50.0 GiB of 100.0 GiB free (50 %),"
        " 90 % of inodes\n"
        "Registry     https://reg.example\n"
        "             tcp         ok     10.0.0.9 port 443 (1ms)\n"
    )


def test_findings_are_ordered_by_weight() -> None:
    facts = NodeFacts(
        **WELL | {"kubelet_limit": 0},
        conditions=(RuntimeCondition("NetworkReady", "no network config"),),
        routes=(route(GOOD, BAD),),
        missing=(Missing("proxy", "it does not answer"),),
    )
    kinds = [finding.kind for finding in examine(facts)]
    assert kinds == ["condition", "registry", "no-limit"]
    out = io.StringIO()
    write_node(document(facts), out)
    lines = out.getvalue().splitlines()
    assert lines[0] == (
        "SERIOUS      the runtime says that NetworkReady does not hold: no network config"
    )
    assert lines[1].startswith("             do: ")
    assert "             tls         FAILS  x509: certificate has expired" in lines
    assert lines[-1] == "Unavailable  proxy: it does not answer"
    assert json.loads(document_json(document(facts)))["serious"] == 2


def test_a_node_of_which_not_all_was_seen_is_not_called_well() -> None:
    facts = NodeFacts(**WELL, missing=(Missing("proxy", "it does not answer"),))
    out = io.StringIO()
    write_node(document(facts), out)
    first = "no problem was found; unavailable: proxy"
    assert out.getvalue().splitlines()[0] == first


def test_the_weight_of_a_finding_is_coloured_on_a_terminal() -> None:
    facts = NodeFacts(
        **WELL | {"kubelet_limit": 0}, conditions=(RuntimeCondition("NetworkReady", "no CNI"),)
    )
    out = io.StringIO()
    write_node(document(facts), out, 60, is_coloured=True)
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("\x1b[31mSERIOUS\x1b[0m  ")
    assert any(line.startswith("\x1b[33mWARNING\x1b[0m  ") for line in lines)
    write_node(document(facts), out := io.StringIO(), 60)
    assert "\x1b" not in out.getvalue()
