"""How a container ended last: its newest attempt or the one before, and what it said then."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from pycrictl._proto import cri_pb2
from pycrictl.base import noderoot
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.inspection import statuses
from pycrictl.runtime.cri.lists.lookup import Lookup

MESSAGE_BYTES: Final = 4096
"""The kubelet's limit for a termination message."""

_MESSAGE_PATH: Final = "io.kubernetes.container.terminationMessagePath"


def attempt_before(
    client: CriClient, one: cri_pb2.ContainerStatus, lookup: Lookup
) -> cri_pb2.ContainerStatus | None:
    """Return the last attempt before one, in any sandbox of its pod; None if it is gone."""
    of = {each.id: each.pod_sandbox_id for each in lookup.containers}
    uids = {pod.metadata.uid for pod in lookup.pods if pod.id == of.get(one.id)}
    sandboxes = {pod.id for pod in lookup.pods if pod.metadata.uid in uids}
    earlier = [
        each
        for each in lookup.containers
        if each.metadata.name == one.metadata.name
        and each.pod_sandbox_id in sandboxes
        and each.id != one.id
        and each.state == cri_pb2.CONTAINER_EXITED
    ]
    newest = sorted(earlier, key=lambda each: each.created_at)[-1:]
    ids = [each.id for each in newest]
    answers = statuses.read(client, "container", ids, is_listed=True)
    return next((answer.status for answer in answers), None)


def termination_message(one: cri_pb2.ContainerStatus) -> str:
    """Return the runtime's error, or what the container wrote where the kubelet reads it."""
    path = one.annotations.get(_MESSAGE_PATH, "/dev/termination-log")
    for mount in one.mounts:
        if mount.container_path == path and not one.message:
            with suppress(OSError):
                content = noderoot.read_named(noderoot.locate(mount.host_path))
                return content[-MESSAGE_BYTES:].decode("utf-8", "replace")
    return one.message
