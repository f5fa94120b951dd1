"""Finding pods and containers by the words users type, in lists of any length."""

from __future__ import annotations

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import NotFound, UsageError
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.lists.lookup import (
    Kind,
    Lookup,
    ObjectRef,
    select_by_id,
    targets,
)
from tests.fakecri import FakeServer, Status

GONE = Status(grpc.StatusCode.NOT_FOUND, "gone")
WHOLE_ID = "ab" * 32


def pods(*numbers: int) -> list[cri_pb2.PodSandbox]:
    return [
        cri_pb2.PodSandbox(
            id=f"{number:064x}",
            metadata=cri_pb2.PodSandboxMetadata(name=f"pod{number % 5000}", namespace="ns"),
        )
        for number in numbers
    ]


def test_a_pod_out_of_a_streamed_list(fake: FakeServer, client: CriClient) -> None:
    parts = [
        cri_pb2.StreamPodSandboxesResponse(pod_sandboxes=pods(*range(first, first + 500)))
        for first in range(0, 10_000, 500)
    ]
    fake.prepare("StreamPodSandboxes", parts, parts, parts)
    fake.offer("ListContainers", None)
    assert Lookup(client).find_pod(f"{9999:064x}").metadata.name == "pod4999"
    with pytest.raises(UsageError, match=r'"pod7" matches 2 pods: 0{13} \(ns/pod7\), '):
        Lookup(client).find_pod("pod7")
    with pytest.raises(NotFound, match='no pod "nosuch"'):
        Lookup(client).find_pod("nosuch")


def pod(letter: str, name: str, *, uid: str = "", ready: bool = True) -> cri_pb2.PodSandbox:
    namespace, _, bare = name.rpartition("/")
    return cri_pb2.PodSandbox(
        id=letter * 64,
        metadata=cri_pb2.PodSandboxMetadata(name=bare, namespace=namespace, uid=uid),
        state=cri_pb2.SANDBOX_READY if ready else cri_pb2.SANDBOX_NOTREADY,
    )


def container(
    start: str, name: str, owner: str, *, created_at: int = 0, lives: bool = True
) -> cri_pb2.Container:
    return cri_pb2.Container(
        id=start.ljust(64, "0"),
        pod_sandbox_id=owner * 64,
        metadata=cri_pb2.ContainerMetadata(name=name),
        state=cri_pb2.CONTAINER_RUNNING if lives else cri_pb2.CONTAINER_EXITED,
        created_at=created_at,
    )


PODS = [
    pod("a", "prod/web", uid="u1"),
    pod("b", "prod/db"),
    pod("c", "test/db"),
    pod("d", "kube-system/dns"),
    pod("e", "prod/old", uid="u5", ready=False),
    pod("f", "prod/old", uid="u6"),
]
CONTAINERS = [
    container("1", "main", "a"),
    container("2", "main", "a", created_at=1),
    container("3", "side", "a"),
    container("4", "side", "b"),
    container("5", "init", "b", lives=False),
    container("db", "main", "c"),
    container("77", "coredns", "d"),
    container("78", "worker", "e", lives=False),
    container("79", "worker", "f"),
]


@pytest.fixture
def node(fake: FakeServer, client: CriClient) -> Lookup:
    fake.offer("ListPodSandbox", cri_pb2.ListPodSandboxResponse(items=PODS))
    fake.offer("ListContainers", cri_pb2.ListContainersResponse(containers=CONTAINERS))
    return Lookup(client)


@pytest.mark.parametrize(
    ("word", "start"),
    [
        ("3".ljust(64, "0"), "3"),
        ("30", "3"),
        ("7700000000000", "77"),
        ("web/main", "2"),
        ("prod/web/side", "3"),
        ("a" * 64 + "/side", "3"),
        ("aaa/side", "3"),
        ("prod/db", "4"),
        ("test/db", "db"),
        ("dns", "77"),
        ("kube-system/dns", "77"),
        ("coredns", "77"),
        ("worker", "79"),
        ("old", "79"),
    ],
)
def test_words_for_a_container(node: Lookup, word: str, start: str) -> None:
    assert node.find_container(word).id == start.ljust(64, "0")


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("side", '"side" matches 2 containers: prod/web/side, prod/db/side'),
        ("main", '"main" matches 2 containers: prod/web/main, test/db/main'),
        ("7", '"7" matches 3 containers: 7700000000000 (kube-system/dns/coredns), 7800000000000 ('),
        # The start of one container's ID, and the name of two pods.
        ("db", '"db" matches 2 containers: test/db/main, prod/db/side'),
    ],
)
def test_what_may_be_typed_instead(node: Lookup, word: str, line: str) -> None:
    with pytest.raises(UsageError) as caught:
        node.find_container(word)
    assert caught.value.message.startswith(line)
    for listed in caught.value.message.partition("containers: ")[2].split(", "):
        assert node.find_container(listed.partition(" ")[0])


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("web/mian", "there is a pod prod/web: its containers are main, side"),
        ("zzz", "'pycrictl ps -a' lists the containers of the node"),
        ("aaaa", "there is a pod prod/web: its containers are main, side"),
    ],
)
def test_no_container(node: Lookup, word: str, hint: str) -> None:
    with pytest.raises(NotFound) as caught:
        node.find_container(word)
    assert caught.value.message == f'no container "{word}"'
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("word", "letter"),
    [("web", "a"), ("prod/db", "b"), ("ccc", "c"), ("d" * 64, "d"), ("dns", "d"), ("old", "f")],
)
def test_words_for_a_pod(node: Lookup, word: str, letter: str) -> None:
    assert node.find_pod(word).id == letter * 64


@pytest.mark.parametrize(
    ("word", "error", "hint"),
    [
        ("db", '"db" matches 2 pods: prod/db, test/db', None),
        ("wbe", 'no pod "wbe"', "'pycrictl pods' lists the pods of the node"),
    ],
)
def test_no_such_pod(node: Lookup, word: str, error: str, hint: str | None) -> None:
    with pytest.raises((NotFound, UsageError)) as caught:
        node.find_pod(word)
    assert (caught.value.message, caught.value.hint) == (error, hint)


def test_targets(fake: FakeServer, client: CriClient, node: Lookup) -> None:
    refs = targets(client, ["4000", "web/main", "nosuch", "prod/web/main", WHOLE_ID], "container")
    assert refs[:2] == [
        ObjectRef("4000", "4".ljust(64, "0")),
        ObjectRef("web/main", "2".ljust(64, "0"), "prod/web/main"),
    ]
    assert isinstance(refs[2].error, NotFound)
    assert refs[3:] == [ObjectRef(WHOLE_ID, WHOLE_ID)]  # prod/web/main repeats web/main
    assert fake.methods().count("ListContainers") == 1


@pytest.mark.parametrize("kind", ["container", "pod"])
def test_a_whole_id_is_looked_for_in_no_list(
    fake: FakeServer, client: CriClient, kind: Kind
) -> None:
    assert Lookup(client).resolve(WHOLE_ID, kind).id == WHOLE_ID
    condition = cri_pb2.ContainerFilter(id=WHOLE_ID, pod_sandbox_id=WHOLE_ID)
    assert (select_by_id(client, condition), fake.calls) == (condition, [])


def test_a_runtime_without_lists_gets_the_word(client: CriClient) -> None:
    assert Lookup(client).resolve("web", "container") == Lookup(client).resolve("web", "pod")
