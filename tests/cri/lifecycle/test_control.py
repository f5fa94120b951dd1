from __future__ import annotations

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.cri.calls.client import CriClient
from pycrictl.cri.lifecycle import control
from pycrictl.cri.lists.lookup import ObjectRef
from pycrictl.errors import NotFound, UsageError
from tests.fakecri import FakeServer, Status

MISSING = Status(grpc.StatusCode.NOT_FOUND, "gone")


def test_ids() -> None:
    assert control.check_ids(["b", "a", "b"], "container") == ("b", "a")
    for ids in ([], [""], ["a", ""]):
        with pytest.raises(UsageError, match="container"):
            control.check_ids(ids, "container")


def test_nothing_is_asked_ahead(fake: FakeServer, client: CriClient) -> None:
    fake.prepare("StartContainer", None)
    started = control.start_containers(client, [ObjectRef("a", "a"), ObjectRef("b", "b")])
    assert fake.calls == []
    assert next(started) == "a"
    assert fake.methods() == ["StartContainer"]


def test_what_was_not_tried_is_told_and_not_endless(fake: FakeServer, client: CriClient) -> None:
    fake.prepare("StopContainer", MISSING)
    ids = [ObjectRef(f"c{number}", f"c{number}") for number in range(1000)]
    with pytest.raises(NotFound) as caught:
        list(control.stop_containers(client, ids, grace_s=0))
    assert caught.value.hint == 'not tried after this: "c1", "c2", "c3", "c4", "c5", …'


def test_the_last_failure_leaves_nothing_untried(fake: FakeServer, client: CriClient) -> None:
    fake.prepare("StopPodSandbox", MISSING)
    with pytest.raises(NotFound) as caught:
        list(control.stop_pods(client, [ObjectRef("a", "a")]))
    assert caught.value.hint is None


def test_resources() -> None:
    assert control.Resources().is_empty
    resources = control.Resources(oom_score_adj=0, cpuset_cpus="0-1", cpu_quota=-1)
    assert not resources.is_empty
    assert resources.message() == cri_pb2.LinuxContainerResources(cpuset_cpus="0-1", cpu_quota=-1)


def test_running_containers(fake: FakeServer, client: CriClient) -> None:
    listed = [cri_pb2.Container(id="a"), cri_pb2.Container(id="b")]
    fake.prepare("ListContainers", cri_pb2.ListContainersResponse(containers=listed))
    assert control.running_containers(client) == [ObjectRef("a", "a"), ObjectRef("b", "b")]
    assert fake.calls[-1].request.filter.state.state == cri_pb2.CONTAINER_RUNNING
