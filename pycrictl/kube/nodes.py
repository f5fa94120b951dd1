"""A node as the API server knows it: its conditions, and whether it takes pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from pycrictl.base.foreign import mapping, mappings, moment, text
from pycrictl.base.units import age_in_words

READY: Final = "Ready"
_TROUBLES: Final = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")


class NodeCondition(NamedTuple):
    """A condition that is not as it should be: ``Ready``, or one of the pressures."""

    condition: str
    message: str
    since_s: float


class Node(NamedTuple):
    """A node of the cluster.

    Attributes:
        conditions: only those that are not as they should be.
        taints: as KEY=VALUE:EFFECT, without those that the cluster sets for conditions.
        exists: False for a node that pods name, but that the API server does not have.
    """

    name: str
    conditions: tuple[NodeCondition, ...] = ()
    is_cordoned: bool = False
    taints: tuple[str, ...] = ()
    exists: bool = True
    now_s: float = 0.0

    @property
    def full_name(self) -> str:
        return f"node {self.name}"

    @property
    def unready(self) -> str:
        """Since when it is not ready, and why; empty if it is."""
        found = (one for one in self.conditions if one.condition == READY)
        ages = ((age_in_words(max(self.now_s - one.since_s, 0.0)), one.message) for one in found)
        return next((f"for {age}: {message}" for age, message in ages), "")

    @property
    def pressures(self) -> list[str]:
        return [one.condition for one in self.conditions if one.condition != READY]

    @property
    def refusals(self) -> list[str]:
        """Why it takes no pods, or only those that tolerate it."""
        cordoned = ["is cordoned"] * self.is_cordoned + ["is not ready"] * bool(self.unready)
        return cordoned + [f"has {what}" for what in (*self.pressures, *self.taints)]


def parse_node(document: Mapping[str, Any], now_s: float = 0.0) -> Node:
    spec, metadata = mapping(document.get("spec")), mapping(document.get("metadata"))
    return Node(
        text(metadata.get("name")),
        tuple(_conditions(document)),
        spec.get("unschedulable") is True,
        tuple(
            f"{text(one.get('key'))}{value and '='}{value}:{text(one.get('effect'))}"
            for one in mappings(spec.get("taints"))
            if not text(one.get("key")).startswith("node.kubernetes.io/")
            for value in [text(one.get("value"))]
        ),
        now_s=now_s,
    )


def _conditions(document: Mapping[str, Any]) -> Iterator[NodeCondition]:
    created_s = moment(mapping(document.get("metadata")).get("creationTimestamp"))
    has_reported = False
    for one in mappings(mapping(document.get("status")).get("conditions")):
        condition, status = text(one.get("type")), one.get("status")
        has_reported |= condition == READY
        if status != "True" if condition == READY else condition in _TROUBLES and status == "True":
            message = text(one.get("message")) or text(one.get("reason"))
            yield NodeCondition(condition, message, moment(one.get("lastTransitionTime")))
    if not has_reported:
        yield NodeCondition(READY, "its kubelet has not reported yet", created_s)
