from __future__ import annotations

from collections.abc import Mapping

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.show import inspect_views
from pycrictl.show.list_views import NEVER
from tests.captures.scene import (
    fake_container_status,
)

NOW = 1_795_209_010.0

NO_INFO: Mapping[str, str] = {}


@pytest.mark.parametrize(
    ("state", "finished_at", "never"),
    [
        ("CONTAINER_CREATED", 5, ["startedAt", "finishedAt"]),
        ("CONTAINER_RUNNING", 5, ["finishedAt"]),
        ("CONTAINER_EXITED", 0, []),
        ("CONTAINER_UNKNOWN", 5, []),
        ("CONTAINER_UNKNOWN", 0, ["finishedAt"]),
    ],
)
def test_times_that_have_not_come(state: str, finished_at: int, never: list[str]) -> None:
    status = cri_pb2.ContainerStatus(state=state, finished_at=finished_at)
    times = inspect_views.container_times(status)
    assert [name for name, text in times.items() if text == NEVER] == never


def test_the_fields_depend_on_the_state() -> None:
    status = fake_container_status().status
    labels = [label for label, _ in inspect_views.container_status_block(status, NO_INFO, now=NOW)]
    assert labels == ["ID", "Name", "Attempt", "State", "Created", "Started"]
    created = cri_pb2.ContainerStatus(id="a")
    block = inspect_views.container_status_block(created, {"b": "2", "a": "1"}, now=NOW)
    assert [label for label, _ in block] == ["ID", "Name", "State", "Created", "Info"]
    assert dict(block)["Info"] == "map[a:1 b:2]"
