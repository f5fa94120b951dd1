"""Commands such as ``start``, ``stop``, ``update`` and ``checkpoint`` as a whole."""

from __future__ import annotations

import shlex

import grpc
import pytest

from pycrictl._proto import cri_pb2
from tests.cli.run import Run
from tests.fakecri import FakeServer, Status, hang

MISSING = Status(grpc.StatusCode.NOT_FOUND, "no such container")


def run(fake: FakeServer, *words: str) -> Run:
    return Run("-t", "5s", "-r", fake.endpoint, *words)


@pytest.mark.parametrize(
    ("line", "method", "doing"),
    [
        ("start", "StartContainer", "starting container"),
        ("stop", "StopContainer", "stopping container"),
        ("stopp", "StopPodSandbox", "stopping pod sandbox"),
        ("update --memory 1", "UpdateContainerResources", "updating container"),
        ("checkpoint -e /x", "CheckpointContainer", "checkpointing container"),
    ],
)
def test_a_failure_does_not_stop_the_others(
    fake: FakeServer, line: str, method: str, doing: str
) -> None:
    fake.prepare(method, MISSING, None, MISSING, None)
    result = run(fake, *line.split(), "a", "a", "b", "c", "d")  # duplicates count once
    assert result.code == 1
    prefix = "Stopped sandbox " if line == "stopp" else ""
    assert result.stdout == f"{prefix}b\n{prefix}d\n"
    errors = [line for line in result.stderr.splitlines() if not line.startswith("hint: ")]
    assert errors[-2:] == [
        f'pycrictl: {doing} "a": not found: no such container',
        f'pycrictl: {doing} "c": not found: no such container',
    ]


def test_what_was_done_is_told_at_once(fake: FakeServer) -> None:
    fake.prepare("StopContainer", None, hang())
    result = Run("-t", "4s", "-r", fake.endpoint, "stop", "a", "b")
    assert (result.code, result.stdout) == (1, "a\n")
    assert result.stderr.startswith('pycrictl: stopping container "b": no answer within 4s\n')


def test_an_option_of_zero_is_sent(fake: FakeServer) -> None:
    fake.prepare("UpdateContainerResources", None)
    assert run(fake, "update", "--oom-score-adj", "0", "a").code == 0
    assert fake.calls[-1].request.HasField("linux")


def test_several_checkpoints_in_one_file_are_warned_of(fake: FakeServer) -> None:
    fake.prepare("CheckpointContainer", None, None)
    result = run(fake, "checkpoint", "--export=/x.tar", "a", "b")
    assert (result.code, result.stdout) == (0, "a\nb\n")
    assert "only the last one remains" in result.stderr
    made = [call.request for call in fake.calls if call.method == "CheckpointContainer"]
    assert [request.timeout for request in made] == [5, 5]


POD_ID, WEB_ID, SIDE_ID = "a1" * 32, "b2" * 32, "c3" * 32


@pytest.fixture
def node(fake: FakeServer) -> FakeServer:
    """A pod ``shop/web`` with a running container ``main`` and an exited one, ``init``."""
    pods = cri_pb2.ListPodSandboxResponse()
    pods.items.add(id=POD_ID, metadata=cri_pb2.PodSandboxMetadata(name="web", namespace="shop"))
    containers = cri_pb2.ListContainersResponse()
    for identifier, name, state in (
        (WEB_ID, "main", cri_pb2.CONTAINER_RUNNING),
        (SIDE_ID, "init", cri_pb2.CONTAINER_EXITED),
    ):
        metadata = cri_pb2.ContainerMetadata(name=name)
        containers.containers.add(
            id=identifier, pod_sandbox_id=POD_ID, metadata=metadata, state=state
        )
    fake.offer("ListPodSandbox", pods)
    fake.offer("ListContainers", containers)
    return fake


@pytest.mark.parametrize("word", ["main", "web", "web/main", "shop/web", "shop/web/main"])
def test_what_a_name_stands_for_is_said(node: FakeServer, word: str) -> None:
    node.prepare("StopContainer", None)
    result = run(node, "stop", word)
    assert (result.code, result.stdout) == (0, f"{word}\n")
    assert result.stderr == f"pycrictl: {word} is container {WEB_ID[:13]} (shop/web/main)\n"
    assert node.calls[-1].request.container_id == WEB_ID


@pytest.mark.parametrize(
    ("line", "call"),
    [
        *(("stop ID", "StopContainer"), ("start ID", "StartContainer")),
        *(("stopp ID", "StopPodSandbox"), ("update --memory 1 ID", "UpdateContainerResources")),
        *(("checkpoint -e /x ID", "CheckpointContainer"), ("exec -s ID true", "ExecSync")),
        *(("inspect ID", "ContainerStatus"), ("inspectp ID", "PodSandboxStatus")),
    ],
)
def test_a_whole_id_costs_no_call(fake: FakeServer, line: str, call: str) -> None:
    fake.prepare(call, None)
    run(fake, *line.replace("ID", WEB_ID).split())
    assert fake.methods() == [call]


@pytest.mark.parametrize(
    "line",
    [
        *("exec -s -c main web -- id -u", "exec web -s -c main -- id -u"),
        *("exec web -s -c main id -u", "exec -s --namespace shop web/main id -u"),
        *("exec web -c main -s --namespace=shop -- id -u", "exec -s main -- id -u"),
    ],
)
def test_containers_and_commands_as_kubectl_has_them(node: FakeServer, line: str) -> None:
    node.prepare("ExecSync", None)
    assert run(node, *line.split()).code == 0
    request = node.calls[-1].request
    assert (request.container_id, [*request.cmd]) == (WEB_ID, ["id", "-u"])


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("exec -s -c nope web id", 'no container "web/nope"'),
        ("exec -s web -c '' id", "the name of the container is empty"),
        ("exec -s --name web -c main id", "--container and --namespace need the name of a pod"),
        ("exec -n shop web id", '"shop" is not an integer; name a namespace with --namespace'),
        ("attach -n shop -c nope web", 'no container "shop/web/nope"'),
        ("cp -n nope -c main web:/etc/passwd .", 'no container "nope/web/main"'),
        ("cp -c nope . web:/etc", 'no container "web/nope"'),
        pytest.param("debug -n nope web", 'no container "nope/web"', marks=pytest.mark.debian),
        ("why -n nope web", 'no pod "nope/web"'),
        ("image-pull-progress -n nope web", 'no pod "nope/web"'),
    ],
)
def test_what_kubectls_options_do_not_find(node: FakeServer, line: str, error: str) -> None:
    done = run(node, *shlex.split(line))
    assert (done.code, done.stdout) == (1, "")
    assert error in done.stderr


def test_what_has_no_such_name_is_not_stopped(node: FakeServer) -> None:
    node.prepare("StopContainer", None)
    result = run(node, "stop", "mian", "main")
    assert (result.code, result.stdout) == (1, "main\n")
    assert result.stderr.splitlines()[1:] == [
        'pycrictl: no container "mian"',
        "hint: 'pycrictl ps -a' lists the containers of the node",
    ]
