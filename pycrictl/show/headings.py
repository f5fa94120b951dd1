"""Headings that ``--sort-by`` takes, and the fields behind them."""

from __future__ import annotations

from typing import Final

_POD: Final = r".labels.io\.kubernetes\.pod\.name"
_NAMESPACE: Final = r".labels.io\.kubernetes\.pod\.namespace"
_UID: Final = r".labels.io\.kubernetes\.pod\.uid"

CONTAINERS: Final = {
    "container": ".id",
    "image": ".image.image",
    "created": ".createdAt",
    "state": ".state",
    "name": ".metadata.name",
    "attempt": ".metadata.attempt",
    "pod id": ".podSandboxId",
    "pod": _POD,
    "namespace": _NAMESPACE,
    "image id": ".imageId",
    "pod uid": _UID,
}
PODS: Final = {
    "pod id": ".id",
    "created": ".createdAt",
    "state": ".state",
    "name": ".metadata.name",
    "namespace": ".metadata.namespace",
    "attempt": ".metadata.attempt",
    "runtime": ".runtimeHandler",
    "uid": ".metadata.uid",
}
IMAGES: Final = {
    "image": ".repoTags[0]",
    "digest": ".repoDigests[0]",
    "image id": ".id",
    "size": ".size",
    "pinned": ".pinned",
    "user": ".username",
}
CONTAINER_STATS: Final = {
    "container": ".attributes.id",
    "name": ".attributes.metadata.name",
    "mem": ".memory.workingSetBytes.value",
    "disk": ".writableLayer.usedBytes.value",
    "inodes": ".writableLayer.inodesUsed.value",
    "swap": ".swap.swapUsageBytes.value",
}
POD_STATS: Final = {
    "pod": ".attributes.metadata.name",
    "pod id": ".attributes.id",
    "mem": ".linux.memory.workingSetBytes.value",
}
"""CPU is not among them: it is the difference of two measurements."""

PULLS: Final = {
    "ended": ".ended",
    "image": ".image",
    "pod": ".pod",
    "waited": ".waitedSeconds",
    "pulled": ".pulledSeconds",
    "got": ".gotBytes",
    "reused": ".reusedBytes",
    "rate": ".bytesPerSecond",
    "attempts": ".attempts",
    "outcome": ".outcome",
}

OF_LISTS: Final = {"containers": CONTAINERS, "items": PODS, "images": IMAGES}
"""Those of the lists, by the lists' names in documents."""
