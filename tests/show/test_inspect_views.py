from __future__ import annotations

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.show import inspect_views
from pycrictl.show.list_views import NEVER


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
