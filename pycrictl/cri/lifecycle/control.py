"""Starting, stopping, updating and checkpointing: one target after the other, as given.

The functions that take several targets are generators: each yields a target's word once the runtime
has answered for it, so that the caller can report it at once, and ends at the first failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from pycrictl._proto import cri_pb2
from pycrictl.cri.lists import fetch, lookup
from pycrictl.cri.lists.lookup import ObjectRef
from pycrictl.errors import MissingArgument, PycrictlError, UsageError
from pycrictl.units import quote

if TYPE_CHECKING:
    from pycrictl.cri.calls.client import CriClient

_LISTED_TARGETS: Final = 5


@dataclass(frozen=True, slots=True)
class Resources:
    """New limits of a container, CPU times in microseconds; None leaves one as it is."""

    cpu_period: int | None = None
    cpu_quota: int | None = None
    cpu_shares: int | None = None
    memory_limit_in_bytes: int | None = None
    oom_score_adj: int | None = None
    cpuset_cpus: str | None = None
    cpuset_mems: str | None = None

    @property
    def is_empty(self) -> bool:
        return self == Resources()

    def message(self) -> cri_pb2.LinuxContainerResources:
        """Return the limits for a request; the API cannot carry one of 0."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return cri_pb2.LinuxContainerResources(**given)


def check_ids(ids: Sequence[str], kind: str) -> tuple[str, ...]:
    """Return the words without repetitions; none, or an empty one, is a UsageError."""
    if not ids:
        raise MissingArgument(f"no {kind} is named")
    if "" in ids:
        raise UsageError(f"the ID of one {kind} is empty")
    return tuple(dict.fromkeys(ids))


def running_containers(client: CriClient) -> list[ObjectRef]:
    state = cri_pb2.ContainerStateValue(state=cri_pb2.CONTAINER_RUNNING)
    found = fetch.containers(client, cri_pb2.ContainerFilter(state=state))
    return [ObjectRef(container.id, container.id) for container in found]


def start_containers(client: CriClient, targets: Sequence[ObjectRef]) -> Iterator[str]:
    def start(target: ObjectRef) -> None:
        request = cri_pb2.StartContainerRequest(container_id=target.id)
        what = f"starting container {quote(target.text)}"
        lookup.call(client, "StartContainer", request, what=what)

    return _each(targets, start)


def stop_containers(
    client: CriClient, targets: Sequence[ObjectRef], *, grace_s: int
) -> Iterator[str]:
    return _each(targets, lambda target: stop_container(client, target, grace_s=grace_s))


def stop_container(client: CriClient, target: ObjectRef, *, grace_s: int) -> None:
    """Stop one container; a grace period of 0 kills it at once."""
    request = cri_pb2.StopContainerRequest(container_id=target.id, timeout=grace_s)
    lookup.call(client, "StopContainer", request, what=f"stopping container {quote(target.text)}")


def stop_pods(client: CriClient, targets: Sequence[ObjectRef]) -> Iterator[str]:
    return _each(targets, lambda target: stop_pod(client, target))


def stop_pod(client: CriClient, target: ObjectRef) -> None:
    request = cri_pb2.StopPodSandboxRequest(pod_sandbox_id=target.id)
    what = f"stopping pod sandbox {quote(target.text)}"
    lookup.call(client, "StopPodSandbox", request, what=what)


def update_containers(
    client: CriClient, targets: Sequence[ObjectRef], resources: Resources
) -> Iterator[str]:
    linux = resources.message()

    def update(target: ObjectRef) -> None:
        request = cri_pb2.UpdateContainerResourcesRequest(container_id=target.id, linux=linux)
        what = f"updating container {quote(target.text)}"
        lookup.call(client, "UpdateContainerResources", request, what=what)

    return _each(targets, update)


def checkpoint_containers(
    client: CriClient, targets: Sequence[ObjectRef], *, path: str
) -> Iterator[str]:
    """``path`` is the archive's on the runtime's host, the same for all."""
    timeout_s = int(client.timeout_s)

    def checkpoint(target: ObjectRef) -> None:
        request = cri_pb2.CheckpointContainerRequest(
            container_id=target.id, location=path, timeout=timeout_s
        )
        what = f"checkpointing container {quote(target.text)}"
        lookup.call(client, "CheckpointContainer", request, what=what)

    return _each(targets, checkpoint)


def update_runtime_config(client: CriClient, *, pod_cidr: str) -> None:
    request = cri_pb2.UpdateRuntimeConfigRequest()
    request.runtime_config.network_config.pod_cidr = pod_cidr
    client.call("UpdateRuntimeConfig", request, what="updating the runtime's configuration")


def _each(targets: Sequence[ObjectRef], act: Callable[[ObjectRef], None]) -> Iterator[str]:
    for position, target in enumerate(targets):
        try:
            if target.error is not None:
                raise target.error
            act(target)
        except PycrictlError as error:
            rest = targets[position + 1 :]
            if rest:
                names = ", ".join(quote(each.text) for each in rest[:_LISTED_TARGETS])
                more = ", …" if len(rest) > _LISTED_TARGETS else ""
                untouched = f"not tried after this: {names}{more}"
                error.hint = f"{error.hint}; {untouched}" if error.hint else untouched
            raise
        yield target.text
