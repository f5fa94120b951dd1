"""Lists such as ``ps`` and ``images``: additions to crictl's, and responses with bad contents."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest

from pycrictl._proto import cri_pb2
from tests.captures import scene
from tests.cli.run import Run
from tests.fakecri import FakeServer, Status, answers, serve

NOW = 1_700_000_000.0

LISTS = {
    "ps": ("ListContainers", cri_pb2.ListContainersResponse),
    "pods": ("ListPodSandbox", cri_pb2.ListPodSandboxResponse),
    "images": ("ListImages", cri_pb2.ListImagesResponse),
    "stats": ("ListContainerStats", cri_pb2.ListContainerStatsResponse),
    "statsp": ("ListPodSandboxStats", cri_pb2.ListPodSandboxStatsResponse),
    "metricsp": ("ListPodSandboxMetrics", cri_pb2.ListPodSandboxMetricsResponse),
    "metricdescs": ("ListMetricDescriptors", cri_pb2.ListMetricDescriptorsResponse),
}


def run(fake: FakeServer, *words: str) -> Run:
    return Run("-r", fake.endpoint, "--timeout", "20s", *words, wall_clock=lambda: NOW)


@pytest.fixture
def containers(fake: FakeServer) -> FakeServer:
    containers = scene.fake_containers(NOW)[:3]
    for number, container in enumerate(containers):
        container.image_id = f"sha256:{scene.hex_id(90 + number)}"
        container.labels["io.kubernetes.pod.uid"] = f"uid-{number}"
        container.metadata.name = f"app-{10 - number}"
    fake.prepare(
        "ListContainers", cri_pb2.ListContainersResponse(containers=containers), repeat=True
    )
    return fake


def column(text: str, heading: str) -> list[str]:
    lines = text.splitlines()
    start = lines[0].index(heading)
    return [line[start:].split("  ")[0].strip() for line in lines[1:]]


def test_wide_containers(containers: FakeServer) -> None:
    shown = run(containers, "ps", "-o", "wide")
    heading = shown.stdout.splitlines()[0].split("   ")
    assert [name.strip() for name in heading if name][-5:] == [
        *("NAMESPACE", "IMAGE ID", "POD UID", "EXIT", "REASON")
    ]
    assert column(shown.stdout, "POD UID") == ["uid-0", "uid-1", "uid-2"]
    assert column(shown.stdout, "IMAGE ID") == ["5a" * 6 + "5", "5b" * 6 + "5", "5c" * 6 + "5"]


def test_pods_of_containers_without_labels_are_found_by_the_sandbox(fake: FakeServer) -> None:
    containers = scene.fake_containers(NOW)[:3]
    containers[0].labels["io.kubernetes.pod.name"] = "labelled"
    fake.offer("ListContainers", cri_pb2.ListContainersResponse(containers=containers))
    metadata = cri_pb2.PodSandboxMetadata(name="web", namespace="shop", uid="u7")
    pods = [
        cri_pb2.PodSandbox(id=container.pod_sandbox_id, metadata=metadata)
        for container in containers[:2]
    ]
    fake.offer("ListPodSandbox", cri_pb2.ListPodSandboxResponse(items=pods))
    shown = run(fake, "ps", "-a", "-o", "wide").stdout
    assert column(shown, "POD  ") == ["labelled", "web", "unknown"]
    assert column(shown, "NAMESPACE") == ["shop", "shop", "unknown"]
    assert column(shown, "POD UID") == ["u7", "u7", "unknown"]
    in_shop = run(fake, "ps", "-aq", "--namespace", "^shop$").stdout.split()
    assert in_shop == [container.id for container in containers[:2]]
    assert run(fake, "ps", "-av").stdout.count("Namespace: shop\n") == 2


def test_wide_pods_have_addresses(fake: FakeServer) -> None:
    def status(request: Any, context: Any) -> Any:
        if request.pod_sandbox_id == scene.hex_id(2):
            return Status(grpc.StatusCode.NOT_FOUND, "gone")
        answer = scene.prepared("PodSandboxStatus")
        answer.status.id = request.pod_sandbox_id
        return answer

    fake.prepare("ListPodSandbox", cri_pb2.ListPodSandboxResponse(items=scene.fake_pods(NOW)[:3]))
    fake.prepare("PodSandboxStatus", status, repeat=True)
    shown = run(fake, "pods", "-o", "wide")
    assert column(shown.stdout, "IP") == ["10.0.0.5,fd00::5", "<none>", "10.0.0.5,fd00::5"]
    assert column(shown.stdout, "UID") == ["u0", "u1", "u2"]


def test_wide_images(fake: FakeServer) -> None:
    images = scene.fake_images()
    images[0].uid.value = 1000
    fake.offer("ListImages", cri_pb2.ListImagesResponse(images=images))
    shown = run(fake, "images", "-o", "wide", "--no-trunc")
    assert shown.stdout.splitlines()[0].split() == [
        "IMAGE", "TAG", "DIGEST", "IMAGE", "ID", "SIZE", "PINNED", "USER",
    ]  # fmt: skip
    users = column(shown.stdout.split("\n\n")[0], "USER")
    assert {"1000", "joe", "0", "<none>"} == set(users)


@pytest.mark.parametrize("command", LISTS)
def test_elements_without_anything_in_them(fake: FakeServer, command: str) -> None:
    name, response = LISTS[command]
    answer = response()
    field = answer.DESCRIPTOR.fields[0].name
    getattr(answer, field).add()
    getattr(answer, field).add()
    fake.prepare(name, answer, repeat=True)
    formats = [["-o", "json"], ["-o", "yaml"]]
    if command in ("ps", "pods", "images"):
        formats += [[], ["-q"], ["-v"], ["-o", "custom-columns=A:.metadata.name,B:.id"]]
    if command in ("stats", "statsp"):
        formats += [["-s", "0"]]
    for words in formats:
        shown = run(fake, command, *words)
        assert (shown.code, shown.stderr) == (0, ""), words


HOSTILE = "evil\x1b]0;title\x07\n\r\x9b2J\u202e" + "x" * 10_000


@pytest.mark.parametrize(
    "words",
    [
        *([], ["-v"], ["-q"], ["-o", "json"], ["-o", "yaml"], ["-o", "wide"], ["--no-trunc"]),
        ["-o", "jsonpath={.items[*]}"],
        ["-o", "jsonpath={range .items[*]}{.metadata.name}{end}"],
        ["-o", "custom-columns=A:.metadata.name,B:.labels"],
        ["--sort-by", ".metadata.name"],
    ],
    ids=str,
)
@pytest.mark.parametrize("command", ["ps", "pods", "images"])
def test_names_cannot_steer_the_terminal(fake: FakeServer, command: str, words: list[str]) -> None:
    labels = {HOSTILE: HOSTILE, "io.kubernetes.pod.name": HOSTILE}
    container = cri_pb2.Container(id=HOSTILE, labels=labels, annotations=labels)
    container.metadata.name = container.image.image = container.image_id = HOSTILE
    fake.offer("ListContainers", cri_pb2.ListContainersResponse(containers=[container]))
    image = cri_pb2.Image(id=HOSTILE, repo_tags=[f"{HOSTILE}:1"], username=HOSTILE)
    fake.offer("ListImages", cri_pb2.ListImagesResponse(images=[image]))
    fake.offer("Status", None)
    pod = cri_pb2.PodSandbox(id=HOSTILE, labels=labels, annotations=labels)
    pod.metadata.name = pod.metadata.namespace = pod.runtime_handler = HOSTILE
    fake.offer("ListPodSandbox", cri_pb2.ListPodSandboxResponse(items=[pod]))
    status = answers.pod_status(HOSTILE)
    status.network.ip = HOSTILE
    fake.offer("PodSandboxStatus", cri_pb2.PodSandboxStatusResponse(status=status))
    if command == "images":
        words = [word.replace(".metadata.name", ".id") for word in words]
    shown = run(fake, command, *words)
    assert (shown.code, shown.stderr) == (0, "")
    printable = shown.stdout.replace("\n", "").replace("\t", "")
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in printable)
    assert "evil" in shown.stdout
    if words in ([], ["--no-trunc"], ["-o", "wide"]):
        assert len(shown.stdout.split("\n\n")[0].splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "call", "answer"),
    [
        (["version"], "Version", cri_pb2.VersionResponse(runtime_name="fake")),
        (["info"], "Status", cri_pb2.StatusResponse(status={"conditions": [{}]})),
        (["inspect", "x"], "ContainerStatus", cri_pb2.ContainerStatusResponse(status={})),
        (["inspectp", "x"], "PodSandboxStatus", cri_pb2.PodSandboxStatusResponse(status={})),
        (["rmp", "-f", "x"], "PodSandboxStatus", cri_pb2.PodSandboxStatusResponse(status={})),
        (["rm", "-f", "x"], "ContainerStatus", cri_pb2.ContainerStatusResponse(status={})),
        (["inspecti", "x"], "ImageStatus", cri_pb2.ImageStatusResponse(image={"size": 1})),
        (["rmi", "x"], "ImageStatus", cri_pb2.ImageStatusResponse(image={"size": 1})),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_answer_with_gaps_is_not_shown(
    fake: FakeServer, words: list[str], call: str, answer: Any
) -> None:
    """Nor acted on: missing fields read as zero, which would mean a ready pod created in 1970."""
    fake.prepare(call, answer)
    shown = run(fake, *words)
    assert (shown.code, shown.stdout) == (1, "")
    (line,) = shown.stderr.splitlines()
    assert "the runtime answered with" in line or "the runtime gave no " in line
    assert [made.method for made in fake.calls if made.is_known] == [call]


def test_another_socket_for_images(fake: FakeServer) -> None:
    container = cri_pb2.Container(id="c", image=cri_pb2.ImageSpec(image="sha256:1"))
    fake.prepare("ListContainers", cri_pb2.ListContainersResponse(containers=[container]))
    with serve() as images:
        image = cri_pb2.Image(id="1", repo_tags=["there:1"])
        images.prepare("ImageStatus", cri_pb2.ImageStatusResponse(image=image))
        shown = run(fake, "-i", images.endpoint, "ps", "-r")
    assert column(shown.stdout, "IMAGE") == ["there:1"]
    assert "ImageStatus" not in fake.methods()


@pytest.mark.parametrize("command", ["inspect", "inspectp", "inspecti"])
def test_one_missing_among_several(fake: FakeServer, command: str) -> None:
    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        name = getattr(request, "container_id", "") or getattr(request, "pod_sandbox_id", "")
        if "zz" in (name or request.image.image):
            context.abort(grpc.StatusCode.NOT_FOUND, "zz")
        match command:
            case "inspect":
                return cri_pb2.ContainerStatusResponse(status=answers.container_status())
            case "inspectp":
                return cri_pb2.PodSandboxStatusResponse(status=answers.pod_status())
        return cri_pb2.ImageStatusResponse(image={"id": "i", "size": 1})

    for call in ("ContainerStatus", "PodSandboxStatus", "ImageStatus"):
        fake.offer(call, answer)
    shown = run(fake, command, "-q", "a", "zz")
    assert (shown.code, len(json.loads(shown.stdout))) == (1, 1)  # still a list
    assert shown.stderr.splitlines()[0].endswith('"zz": not found: zz')
    table = run(fake, command, "-q", "-o", "table", "zz", "a", "a")
    assert (table.code, f"\n{table.stdout}".count("\nID: ")) == (1, 2)
    nothing = run(fake, command, "zz", "zz")
    assert (nothing.code, nothing.stdout) == (1, "")
