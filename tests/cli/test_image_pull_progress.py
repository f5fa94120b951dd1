"""``image-pull-progress`` on a runtime that offers the call."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.kube.node_pods import NodePods
from pycrictl.pulls.sources.endings import Pace
from tests.cli.run import Run, start
from tests.cli.streaming_server import progress_streams
from tests.fakecri import FakeServer, Status
from tests.kube.apiserver import NODE, make_node_certificates, serve, write_kubeconfig
from tests.support.proxy_story import IMAGE, LAYERS, PODS, STORY, WEB, pod, record, url

COMMAND = "pycrictl.cli.commands.image_pull_progress"
HASTY = partial(Pace, reopen_pauses_s=(0.2, 0.01))


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{COMMAND}.Pace", HASTY)


@contextmanager
def streams(
    fake: FakeServer,
    *scripts: Any,
    repeat: bool = False,
    cut: Sequence[int] = (),
    scheme: str = "http",
    then: Sequence[Status] = (),
) -> Iterator[Any]:
    """Offer two pods, and ImagePullProgress with the URL of these streams, ``then`` with errors."""
    with progress_streams(*scripts, cut=cut, scheme=scheme) as server:
        fake.prepare("ListPodSandbox", PODS)
        fake.prepare("ImagePullProgress", url(server.url), *then, repeat=repeat)
        yield server


def watch(fake: FakeServer, *words: str) -> Run:
    return Run("-r", fake.endpoint, "image-pull-progress", "--interval", "0.05", *words)


def objects(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_newline_delimited_json(fake: FakeServer) -> None:
    with streams(fake, STORY):
        run = watch(fake, "web", "--progress", "json")
    assert (run.code, run.stderr) == (0, "")
    final = {entry["layer"]: entry for entry in objects(run)}
    assert {entry["progress"] for entry in final.values()} == {100}
    assert {entry["total"] for entry in final.values()} == {100}
    assert {entry["phase"] for entry in final.values()} == {"done"}
    (request,) = [call.request for call in fake.calls if call.method == "ImagePullProgress"]
    assert (request.pod_sandbox_id, request.container_id) == (WEB, "")


def test_a_broken_stream_is_taken_up_again_and_the_map_survives(fake: FakeServer) -> None:
    with streams(fake, STORY[:2], [record(0, 100), record(1, 100)], cut=[0], repeat=True) as server:
        run = watch(fake, "web", "--progress", "json")
        assert server.connections == 2
    assert run.code == 0
    assert run.stderr.endswith("; connecting again\n")
    assert "token" not in run.stderr
    assert [entry["progress"] for entry in objects(run)][:2] == [0, 10]


@pytest.mark.parametrize(
    "code", ["DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "INTERNAL", "UNIMPLEMENTED"]
)
def test_a_call_that_fails_meanwhile_is_made_again(fake: FakeServer, code: str) -> None:
    with progress_streams(STORY[:2], [record(0, 100), record(1, 100)], cut=[0]) as server:
        fake.prepare("ListPodSandbox", PODS)
        failure = Status(grpc.StatusCode[code], "not now")
        fake.prepare("ImagePullProgress", url(server.url), failure, url(server.url))
        run = watch(fake, "web", "--progress", "json")
    assert run.code == 0
    assert {e["layer"]: e["progress"] for e in objects(run)} == dict.fromkeys(LAYERS, 100)


def test_a_pull_that_goes_on_later_is_waited_for(fake: FakeServer) -> None:
    """If a proxy is killed, kubelet retries its pull only later; the watch waits for that."""
    with streams(fake, STORY[:2], [], [], STORY[2:], cut=[0], repeat=True) as server:
        run = watch(fake, "web", "--progress", "json")
        assert server.connections == 4
    assert run.code == 0
    assert {e["layer"]: e["phase"] for e in objects(run)} == dict.fromkeys(LAYERS, "done")
    assert "unfinished" not in run.stderr


def test_a_pull_that_does_not_go_on_has_failed(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{COMMAND}.Pace", partial(HASTY, resume_s=0.2))
    with streams(fake, STORY[:2], *[[]] * 100, cut=[0], repeat=True):
        run = watch(fake, "web")
    assert run.code == 1
    assert "nothing is being pulled any more; 2 layers did not finish\n" in run.stderr
    assert run.stderr.endswith("failed: it did not resume after the connection was lost\n")


@pytest.mark.parametrize("phase", ["done", "failed"])
def test_an_end_that_names_no_layers_is_that_of_all(fake: FakeServer, phase: str) -> None:
    """If the pull ends during the reconnect, the new source may not know the layers."""
    error = {"error": "no such image"} if phase == "failed" else {}
    end = {"image": IMAGE, "progress": 0, "total": 0, "phase": phase, **error}
    with streams(fake, STORY[:3], [end], cut=[0], repeat=True):
        run = watch(fake, "web", "--progress", "json")
    assert run.code == (phase == "failed")
    assert {e["layer"]: e["phase"] for e in objects(run)} == dict.fromkeys(LAYERS, phase)


def test_a_failed_pull_ends_with_its_reason(fake: FakeServer) -> None:
    story = [record(0, 100), record(1, 40, error="401 \x1b[31mUnauthorized")]
    with streams(fake, story):
        run = watch(fake, "web")
    assert run.code == 1
    last = run.stderr.splitlines()[-1]
    assert last.startswith(f'pycrictl: the pull of "{IMAGE}" failed: 401 ')
    assert "\x1b" not in run.stderr


def test_nothing_is_being_pulled(fake: FakeServer) -> None:
    with streams(fake, []):
        run = watch(fake, "web")
    assert (run.code, run.stderr) == (0, 'no image is being pulled for "web"\n')


def test_a_container_is_named_in_the_call(fake: FakeServer) -> None:
    container = cri_pb2.Container(
        id="cc" * 32, pod_sandbox_id=WEB, metadata=cri_pb2.ContainerMetadata(name="app")
    )
    fake.prepare("ListContainers", cri_pb2.ListContainersResponse(containers=[container]))
    with streams(fake, []):
        assert watch(fake, "web", "-c", "app").code == 0
    assert fake.calls[-1].request.pod_sandbox_id == WEB
    assert fake.calls[-1].request.container_id == container.id


OTHER = "registry.example/side:2"


@pytest.fixture
def node(run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The root of a node whose API server has the pod ``web``, however busy this machine is."""
    patient = partial(NodePods, timeout_s=20.0)
    monkeypatch.setattr(f"{COMMAND}.NodePods", patient)
    containers = [{"name": "app", "image": IMAGE}, {"name": "side", "image": OTHER}]
    metadata = {"name": "web", "namespace": "default", "uid": "u1"}
    with serve(make_node_certificates(run_folder)) as api:
        spec = {"nodeName": NODE, "containers": containers}
        api.pods = {"items": [{"metadata": metadata, "spec": spec}]}
        write_kubeconfig(api.kubeconfig(inline=True), tmp_path)
        yield tmp_path


@pytest.mark.parametrize(
    ("name", "shown"), [("app", {IMAGE}), ("side", {OTHER}), ("nosuch", {IMAGE, OTHER})]
)
def test_a_container_that_is_not_there_yet_but_in_the_pods_spec(
    fake: FakeServer, node: Path, name: str, shown: set[str]
) -> None:
    listed = [pod(WEB, "web")]
    with progress_streams([*STORY, *({**message, "image": OTHER} for message in STORY)]) as server:
        fake.prepare("ListPodSandbox", cri_pb2.ListPodSandboxResponse(items=listed), repeat=True)
        fake.prepare("ListContainers", cri_pb2.ListContainersResponse(), repeat=True)
        fake.prepare("ImagePullProgress", url(server.url))
        words = ["--host-root", str(node), "-r", fake.endpoint, "image-pull-progress"]
        run = Run(*words, "web", "-c", name, "--progress", "json")
    assert run.code == 0, run.stderr
    assert {item["image"] for item in objects(run)} == shown
    image, *others = shown
    told = "the whole pod" if others else f'"{image}"'
    assert f'container "{name}" does not exist yet: showing the pulls of {told}' in run.stderr


def test_neither_source_is_there(fake: FakeServer) -> None:
    fake.prepare("ListPodSandbox", PODS)
    run = watch(fake, "web")
    assert run.code == 1
    assert run.stderr.splitlines()[-1] == (
        f'pycrictl: the runtime at "{fake.endpoint}" is not containerd, which this command needs'
    )


def test_an_answer_without_url(fake: FakeServer) -> None:
    fake.prepare("ListPodSandbox", PODS)
    fake.prepare("ImagePullProgress", url(""))
    run = watch(fake, "web")
    assert run.code == 1
    assert run.stderr == "pycrictl: the runtime answered ImagePullProgress without a URL\n"


def test_a_pod_that_goes_away(fake: FakeServer) -> None:
    gone = Status(grpc.StatusCode.NOT_FOUND, "no such sandbox")
    with streams(fake, STORY[:2], cut=[0], then=[gone]):
        run = watch(fake, "web")
    assert run.code == 0
    assert "the pod is gone\n" in run.stderr


def test_ctrl_c_ends_the_watch_only(fake: FakeServer) -> None:
    with streams(fake, STORY, cut=[0], repeat=True):
        words = ("image-pull-progress", "--follow", "--progress", "json", "web")
        process = start("-r", fake.endpoint, *words)
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    last = stderr.splitlines()[-1]
    assert last == "pycrictl: stopped watching; the pulls go on"
