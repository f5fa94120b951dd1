from __future__ import annotations

import copy
from typing import Any

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.cri.inspection.statuses import check, check_conditions
from pycrictl.errors import RemoteProtocolError
from tests.fakecri.answers import VERSION, container_status, pod_status

IMAGE = cri_pb2.Image(id="sha256:1", size=1)


def without(message: Any, path: str) -> Any:
    """A copy in which the field at ``path`` is empty."""
    changed = copy.deepcopy(message)
    *parents, name = path.split(".")
    target = changed
    for parent in parents:
        target = getattr(target, parent)
    target.ClearField(name)
    return changed


@pytest.mark.parametrize(
    ("complete", "path"),
    [
        *((VERSION, name) for name in ("version", "runtime_name", "runtime_api_version")),
        (VERSION, "runtime_version"),
        *((pod_status(), f"metadata.{name}") for name in ("name", "namespace", "uid")),
        *((pod_status(), name) for name in ("id", "created_at")),
        *((container_status(), name) for name in ("id", "created_at", "image_ref")),
        *((container_status(), name) for name in ("metadata.name", "image.image")),
        *((IMAGE, name) for name in ("id", "size")),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_is_not_there_is_named(complete: Any, path: str) -> None:
    check(complete, "x")
    with pytest.raises(RemoteProtocolError, match=f"^x: the runtime answered without {path}$"):
        check(without(complete, path), "x")


@pytest.mark.parametrize("count", range(4))
def test_conditions(count: int) -> None:
    status = cri_pb2.RuntimeStatus(conditions=[cri_pb2.RuntimeCondition()] * count)
    if count >= 2:
        check_conditions(status, "x")
        return
    with pytest.raises(RemoteProtocolError, match="x: the runtime answered with fewer than 2 cond"):
        check_conditions(status, "x")
