"""The images that pods need, by the API server's documents, and the journal's lines about pods."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from pycrictl.base.foreign import moment
from pycrictl.kube.kubelet_log import MOST_LINES, about
from pycrictl.kube.node_pods import NodePods
from pycrictl.kube.pods import PodImage, parse_pod
from pycrictl.node.journal import JournalLine
from tests.kube.apiserver import PODS, ApiServer, write_kubeconfig


def test_a_pod_and_its_images() -> None:
    pod = parse_pod(PODS["items"][0])
    assert pod is not None
    assert str(pod) == "default/web"
    assert (pod.phase, pod.pull_secrets) == ("Pending", ("team-registry",))
    assert [(image.container, image.image) for image in pod.images] == [
        ("setup", "busybox:1.36"),
        ("web", "registry.example/shop/web:1.4"),
        ("side", f"registry.example/shop/side@sha256:{'2' * 64}"),
        ("model", "registry.example/models/small:2"),
    ]
    assert [image.reason for image in pod.images] == [
        "",
        "ImagePullBackOff",
        "ContainerCreating",
        "",
    ]
    assert pod.images[1].message.endswith("registry.example/shop/web:1.4: not found")
    assert [image.has_started for image in pod.images] == [True, False, False, False]


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"metadata": None},
        {"metadata": {"name": 7}},
        {"metadata": {"name": ""}, "spec": []},
    ],
)
def test_what_is_no_pod(document: dict[str, object]) -> None:
    assert parse_pod(document) is None


def test_a_pod_of_odd_shape() -> None:
    document = {
        "metadata": {"name": "a", "namespace": None},
        "spec": {"containers": [7, {"name": "x"}, {"image": "i"}], "volumes": {"image": 1}},
        "status": {"containerStatuses": [{"name": "", "state": {"waiting": {"reason": 5}}}]},
    }
    pod = parse_pod(document)
    assert pod is not None
    assert (str(pod), pod.images) == ("default/a", (PodImage("", "i"),))


def test_readiness_is_of_containers_that_can_have_probes() -> None:
    ready = {"ready": False, "state": {"running": {}}}
    document = {
        "metadata": {"name": "a"},
        "spec": {
            "initContainers": [
                {"name": "init", "image": "i"},
                {"name": "sidecar", "image": "i", "restartPolicy": "Always"},
            ],
            "containers": [{"name": "app", "image": "i"}],
            "ephemeralContainers": [{"name": "debugger", "image": "i"}],
        },
        "status": {
            "initContainerStatuses": [{"name": "init", **ready}, {"name": "sidecar", **ready}],
            "containerStatuses": [{"name": "app", **ready}],
            "ephemeralContainerStatuses": [{"name": "debugger", **ready}],
        },
    }
    pod = parse_pod(document)
    assert pod is not None
    assert [(image.container, image.is_ready) for image in pod.images] == [
        ("init", None), ("sidecar", False),
        ("app", False), ("debugger", None),
    ]  # fmt: skip
    assert [image.role for image in pod.images] == ["init", "sidecar", "app", "debug"]


@pytest.mark.parametrize(
    ("states", "due"),
    [
        ([{}, {}], ["first"]),
        ([{"running": {}}, {}], ["first"]),
        ([{"terminated": {"exitCode": 1}}, {}], ["first"]),
        ([{"terminated": {"exitCode": 0}}, {}], ["first", "sidecar"]),
        ([{"terminated": {"exitCode": 0}}, {"running": {}}], ["first", "sidecar", "app"]),
    ],
)
def test_which_images_the_kubelet_pulls_by_now(
    states: list[dict[str, Any]], due: list[str]
) -> None:
    names = "first", "sidecar"
    statuses = [{"name": name, "state": state} for name, state in zip(names, states, strict=True)]
    pod = parse_pod(
        {
            "metadata": {"name": "a"},
            "spec": {
                "initContainers": [
                    {"name": "first", "image": "i"},
                    {"name": "sidecar", "image": "i", "restartPolicy": "Always"},
                ],
                "containers": [{"name": "app", "image": "i"}],
            },
            "status": {"initContainerStatuses": statuses},
        }
    )
    assert pod is not None
    assert [image.container for image in pod.images if image.is_due] == due


def test_when_the_kubelet_last_wrote_the_status() -> None:
    writers = [
        {"manager": "kubectl", "time": "2026-11-22T22:00:00Z"},
        {"manager": "kubelet", "subresource": "status", "time": "2026-11-22T22:38:30Z"},
    ]
    pod = parse_pod({"metadata": {"name": "a", "managedFields": writers}})
    assert pod is not None
    assert pod.status_s == moment("2026-11-22T22:38:30Z")


def test_the_volume_of_a_pod_that_has_finished_was_there() -> None:
    volume = {"name": "model", "image": {"reference": "registry.example/models/small:2"}}
    document = {"metadata": {"name": "a"}, "spec": {"volumes": [volume]}}
    phases = "Pending", "Running", "Succeeded", "Failed"
    pods = [parse_pod({**document, "status": {"phase": phase}}) for phase in phases]
    assert [pod.images[0].has_started for pod in pods if pod] == [False, True, True, False]


def test_the_pods_of_the_node(api: ApiServer, tmp_path: Path) -> None:
    write_kubeconfig(api.kubeconfig(inline=True), tmp_path)
    pods = NodePods(root=tmp_path, timeout_s=20)
    assert [str(pod) for pod in pods.pods()] == ["default/web", "jobs/batch"]
    assert pods.is_from_api
    web = pods.find("default", "web")
    assert web is not None
    assert pods.find("elsewhere", "x", web.uid) == web
    assert pods.find("default", "batch") is None
    assert len(api.asked) == 1
    impatient = NodePods(root=tmp_path, timeout_s=20, refresh_s=0.0)
    assert impatient.pods() == pods.pods()
    api.pods = {**PODS, "items": PODS["items"][1:]}
    assert [str(pod) for pod in impatient.pods()] == ["jobs/batch"]


@pytest.mark.parametrize("trouble", ["none", "unreachable", "slow"])
def test_a_credential_that_does_not_help(
    api: ApiServer, tmp_path: Path, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    if trouble == "unreachable":
        write_kubeconfig(api.kubeconfig(inline=True, server="https://127.0.0.1:1"), tmp_path)
    elif trouble == "slow":
        api.silence = threading.Event()
        write_kubeconfig(api.kubeconfig(inline=True), tmp_path)
    pods = NodePods(root=tmp_path, timeout_s=2.0)
    with caplog.at_level(logging.DEBUG, "pycrictl.kube"):
        assert (pods.pods(), pods.pods()) == ((), ())
    assert len(api.asked) <= 1, "it is asked once"
    assert not pods.is_from_api
    assert len(caplog.messages) == 1
    assert "PRIVATE" not in caplog.text


def test_nobody_is_asked(api: ApiServer, tmp_path: Path) -> None:
    write_kubeconfig(api.kubeconfig(inline=True), tmp_path)
    pods = NodePods(is_allowed=False, root=tmp_path)
    assert (pods.pods(), pods.is_from_api, api.asked) == ((), False, [])


SANDBOX = (
    'level=error msg="RunPodSandbox for &PodSandboxMetadata{Name:web,Uid:u1,Namespace:shop,'
    'Attempt:0,} failed, error" error="no"'
)
KUBELET = '"Error syncing pod, skipping" err="x" pod="shop/side" podUID="u2"'
LINES = [
    JournalLine(1.0, "containerd", SANDBOX),
    JournalLine(2.0, "kubelet", KUBELET),
    JournalLine(3.0, "containerd", 'msg="StopContainer for c0ffee" '),
]


def test_a_pods_own_lines() -> None:
    assert [line.at_s for line in about(LINES, "shop", "web", "", ())] == [1.0]
    assert [line.at_s for line in about(LINES, "shop", "side", "", ("", "c0ffee"))] == [2.0, 3.0]
    assert [line.at_s for line in about(LINES, "shop", "x", "u2", ())] == [2.0]
    assert about(LINES, "other", "web", "", ("",)) == ()
    assert len(about(LINES[:1] * 1000, "shop", "web", "", ())) == MOST_LINES
