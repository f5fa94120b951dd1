"""Every example of the man pages and of ``--help``, run as written."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final, NamedTuple

import pytest
from google.protobuf.message import Message

from pycrictl._proto import cri_pb2
from tests.fakecri import serve
from tests.fakecri.server import Answer
from tools import surface
from tools.manual import pages

from .house import Done, House


class GoesOn(NamedTuple):
    """Text printed by an example that runs until Ctrl-C, and its exit status after it."""

    text: str
    code: int = 0


GOES_ON: Final = {
    "pycrictl agent --node-name n1 --kubeconfig /etc/kubernetes/kubelet.conf": GoesOn(" serving "),
    "pycrictl attach web": GoesOn("serving", 130),
    "pycrictl image-pull-progress --follow": GoesOn("downloading", 130),
    "pycrictl logs --follow --tail 20 --timestamps web": GoesOn("Z serving"),
    "pycrictl logs -f default/web": GoesOn("serving"),
    "pycrictl port-forward web 8080:80 :9090": GoesOn(" -> 9090"),
    "pycrictl proxy --upstream unix:///run/containerd/containerd.sock": GoesOn(" ready "),
    "pycrictl stats --watch": GoesOn("CPU %"),
}

TYPED: Final = {
    "pycrictl debug web": "echo $((40 + 2)); exit\n",
    "pycrictl exec -it --name web sh": "echo $((40 + 2)); exit\n",
}
"""Input for the examples that need a terminal."""

SILENT: Final = (
    "config --set",
    "doctor -o json | jq",
    "save docker.io/library/busybox:1.36 -o",
    "tag",
    "update-runtime-config",
)
"""Beginnings of examples that print nothing: they succeed, or there is nothing serious to tell."""

SHOWS: Final = {
    "pycrictl cp ./pod.yaml web:/tmp/": "copied 1 file",
    "pycrictl cp -a web:/etc/nginx ./nginx": "copied 1 file, 1 directory",
    "pycrictl cp web:/etc/nginx - | tar -t": "nginx/nginx.conf",
    "pycrictl debug default/web cat /container/etc/app.conf": "port 8080",
    "pycrictl debug web": "42",
    "pycrictl exec --name web ps": "sleep",
    "pycrictl exec -it --name web sh": "42",
    "pycrictl images --digests --filter reference=busybox": "docker.io/library/busybox",
    "pycrictl image-pull-progress default/web": "done: 3 layers",
    "pycrictl inspectp --name '^web$' --state ready": "SANDBOX_READY",
    "pycrictl pods --namespace '^kube-system$' --state ready": "dns",
    "pycrictl pull-limiter cancel default/training": 'no pull of "default/training" waits',
    "pycrictl pull-limiter set 2": "limit 3 -> 2",
    "pycrictl rmi --prune --dry-run": "Would delete: registry.example/team/unused@sha256:",
}
"""Text that some examples must print; for the others, any output will do."""

FAILS: Final = {
    "pycrictl image-pull-progress --progress json | jq 'select(.phase == \"failed\")'": 1,
    "pycrictl pull-limiter cancel default/training": 1,  # no pull waits
    # Why that pod's container is not running is unknown, and that name is not in the DNS.
    "pycrictl why default/web": 1,
    "pycrictl why default/web -o json | jq -r .cause.kind": 1,
    "pycrictl doctor --registry registry.example.com/shop/web": 1,
}
"""The exit status of examples that fail."""

NEWER: Final[dict[str, tuple[str, Answer | list[Message]]]] = {
    "checkpoint": ("CheckpointContainer", cri_pb2.CheckpointContainerResponse()),
    "events": (
        "GetContainerEvents",
        [cri_pb2.ContainerEventResponse(container_event_type=cri_pb2.CONTAINER_STARTED_EVENT)],
    ),
    "metricdescs": ("ListMetricDescriptors", cri_pb2.ListMetricDescriptorsResponse()),
    "metricsp": ("ListPodSandboxMetrics", cri_pb2.ListPodSandboxMetricsResponse()),
    "runtime-config": (
        "RuntimeConfig",
        cri_pb2.RuntimeConfigResponse(
            linux=cri_pb2.LinuxRuntimeConfiguration(cgroup_driver=cri_pb2.CGROUPFS)
        ),
    ),
}
"""Commands for which the node's containerd is too old: a call, and a newer runtime's answer."""


ALL: Final = [
    (command.path, line)
    for command in surface.program().walk()
    for _, line in pages.examples(command)
]


@pytest.fixture
def house(furnished: House) -> House:
    furnished.tidy()
    return furnished


@pytest.mark.parametrize(("path", "line"), ALL, ids=[line for _, line in ALL])
def test_example(house: House, path: tuple[str, ...], line: str) -> None:
    with ExitStack() as surroundings:
        if path == ("image-pull-progress",):
            surroundings.enter_context(house.slow_pull(fails=line in FAILS))
        if path[0] == "pull-limiter":
            surroundings.enter_context(house.proxy())
        if "registry.example/private/" in line:
            house.require_login()
        if line in GOES_ON:
            done = house.run_until(line, GOES_ON[line].text)
            assert (done.code, GOES_ON[line].text in done.text) == (GOES_ON[line].code, True), done
        elif line in TYPED:
            done = house.run_on_terminal(line, TYPED[line])
            assert done.code == 0, done
        elif path[0] in NEWER:
            done = house.run(line)
            assert done.code == 1, done
            assert "does not implement" in done.stderr
            done = on_newer_runtime(house, path[0], line)
        else:
            is_watch = path == ("image-pull-progress",)
            [done] = house.watch(line) if is_watch else [house.run(line)]
            assert done.code == FAILS.get(line, 0), done
    is_silent = line.removeprefix("pycrictl ").startswith(SILENT)
    assert bool(done.text) == (not is_silent)
    assert SHOWS.get(line, "") in done.text
    assert "Traceback" not in done.text


def on_newer_runtime(house: House, name: str, line: str) -> Done:
    method, answer = NEWER[name]
    container = cri_pb2.Container(id="c1", metadata=cri_pb2.ContainerMetadata(name="web"))
    with serve() as fake:
        fake.offer("ListContainers", cri_pb2.ListContainersResponse(containers=[container]))
        fake.offer(method, answer)
        done = house.run(line, CONTAINER_RUNTIME_ENDPOINT=fake.endpoint)
    assert done.code == 0, done
    return done


def test_the_tables_hold_only_examples() -> None:
    lines = {line for _, line in ALL}
    assert len(lines) > 45
    for table in (GOES_ON, TYPED, SHOWS, FAILS):
        assert lines >= table.keys()
    assert {path[0] for path, _ in ALL} >= NEWER.keys()
    assert all(any(line.startswith(f"pycrictl {start}") for line in lines) for start in SILENT)


def test_every_command_has_an_example() -> None:
    commands = {command.path for command in surface.program().walk() if command.path}
    assert {path for path, _ in ALL} == commands
