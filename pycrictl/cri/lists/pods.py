"""Pod sandboxes of the node: the list, filtered here by what the CRI cannot filter by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from pycrictl._proto import cri_pb2
from pycrictl.cri.lists import fetch
from pycrictl.cri.lists.fetch import newest_count, newest_first
from pycrictl.cri.lists.lookup import select_by_id
from pycrictl.cri.lists.patterns import Pattern

if TYPE_CHECKING:
    from pycrictl.cri.calls.client import CriClient

State = Literal["ready", "notready"]
STATES: Final[dict[State, cri_pb2.PodSandboxState]] = {
    "ready": cri_pb2.SANDBOX_READY,
    "notready": cri_pb2.SANDBOX_NOTREADY,
}


class PodQuery(NamedTuple):
    condition: cri_pb2.PodSandboxFilter
    name: Pattern | None = None
    namespace: Pattern | None = None
    newest: int | None = None


def pod_query(
    *,
    pod_id: str = "",
    labels: Mapping[str, str] | None = None,
    last: int = 0,
    latest: bool = False,
    name: str = "",
    namespace: str = "",
    state: State | None = None,
) -> PodQuery:
    condition = cri_pb2.PodSandboxFilter(id=pod_id, label_selector=labels)
    if state is not None:
        condition.state.state = STATES[state]
    return PodQuery(
        condition,
        name=Pattern(name, option="--name") if name else None,
        namespace=Pattern(namespace, option="--namespace") if namespace else None,
        newest=newest_count(latest=latest, last=last),
    )


def list_pods(client: CriClient, query: PodQuery) -> list[cri_pb2.PodSandbox]:
    select_by_id(client, query.condition)
    return select_pods(fetch.pods(client, query.condition), query)


def select_pods(pods: Iterable[cri_pb2.PodSandbox], query: PodQuery) -> list[cri_pb2.PodSandbox]:
    found = [
        pod
        for pod in pods
        if (query.name is None or query.name.matches(pod.metadata.name))
        and (query.namespace is None or query.namespace.matches(pod.metadata.namespace))
    ]
    return newest_first(found, query.newest)
