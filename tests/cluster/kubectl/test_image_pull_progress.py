"""``kubectl image-pull-progress`` with a real kubectl, against a stand-in for a cluster."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.kubectl.cluster import NODE, Cluster, Stream, event, pod, pull
from tests.cluster.kubectl.plugin import Plugin
from tests.kube.access import User
from tests.kube.aggregator import BASE, GROUP
from tests.kube.objects import Document, status
from tests.kube.tokens import Token
from tests.waiting import wait_until

MB = 1_000_000
GONE = status(503, "error trying to reach service: no endpoints", "ServiceUnavailable")


def web(progress: int, namespace: str = "default") -> Document:
    """Return the pull of the pod "web" when some of its 40 MB have arrived."""
    phase = "Succeeded" if progress == 40 else "Pulling"
    return pull("web", phase, progress=progress * MB, total=40 * MB, namespace=namespace)


def watch(*progress: int, ending: str = "hold") -> Stream:
    return Stream([event("MODIFIED", web(step)) for step in progress], 0.1, ending)


def asked(cluster: Cluster, part: str) -> list[str]:
    return [path for path in cluster.asked if part in path]


def test_one_pod(cluster: Cluster, plugin: Plugin) -> None:
    cluster.pods = [pod("web", namespace="shop")]
    cluster.pulls = [[web(1, "shop"), pull("db", "Failed", namespace="shop")]]
    cluster.watches = [Stream([event("MODIFIED", web(40, "shop"))], 0.1, "hold")]
    run = plugin.by_kubectl("image-pull-progress", "web", "-nshop")
    assert run.code == 0
    assert run.stderr.splitlines()[-1].startswith("web:1 done: 1 layer, 38.1 MiB")
    wanted = f"{BASE}/namespaces/shop/imagepulls?fieldSelector=spec.podName%3Dweb"
    assert asked(cluster, "imagepulls")[0] == wanted


def test_a_pod_whose_image_is_present(cluster: Cluster, plugin: Plugin) -> None:
    cluster.pods = [pod("web")]
    cluster.pulls = [[web(40)]]
    run = plugin.run("web")
    assert run.code == 0
    assert run.stderr == "web:1 started: 1 present\nweb:1 done: 0 B, already present\n"


def test_the_namespace_is_that_of_kubectls_context(
    cluster: Cluster, plugin: Plugin, tmp_path: Path
) -> None:
    cluster.pods = [pod("web", namespace="shop")]
    cluster.pulls = [[pull("web", "Succeeded", namespace="shop", total=5)]]
    plugin.environ["KUBECONFIG"] = str(cluster.kubeconfig(tmp_path, namespace="shop"))
    for words in ((), ("web",)):
        assert plugin.run(*words).code == 0
    assert len(asked(cluster, "/namespaces/shop/imagepulls")) >= 2


def test_options_of_the_connection_are_handed_on(cluster: Cluster, plugin: Plugin) -> None:
    cluster.pods = [pod("web")]
    cluster.pulls = [[web(40)]]
    cluster.permit("jane", "", "pods")
    cluster.permit("jane", GROUP, "*")
    kubeconfig = plugin.environ.pop("KUBECONFIG")
    run = plugin.run("web", "--kubeconfig", kubeconfig, "--as=jane", "--context", "x")
    assert run.code == 0
    assert cluster.users == {"jane"}


def test_a_watch_that_breaks_goes_on(cluster: Cluster, plugin: Plugin) -> None:
    cluster.pods = [pod("web")]
    cluster.watches = [watch(8, 16, ending="cut"), watch(40)]
    cluster.pulls = [[web(4)], (503, GONE), [web(24)]]
    run = plugin.run("web", "--progress=json", "--interval=0.05")
    assert run.code == 0
    assert "the connection to the cluster broke off; connecting again" in run.stderr
    shares = [record["percent"] for record in run.objects if "percent" in record]
    assert shares == sorted(shares)
    assert shares[-1] == 100


@pytest.mark.usefixtures("impatient")
def test_a_cluster_that_stays_away_ends_it(cluster: Cluster, plugin: Plugin) -> None:
    cluster.pods = [pod("web")]
    cluster.watches = [watch(4, ending="cut")]
    cluster.pulls = [[web(1)], *[(503, GONE)] * 9]
    run = plugin.run("web")
    assert run.code == 1
    assert "the agent is installed but does not answer: error trying to reach" in run.stderr
    assert len(asked(cluster, "imagepulls?fieldSelector=spec.podName%3Dweb")) == 8


def test_a_failed_pull(cluster: Cluster, plugin: Plugin) -> None:
    cluster.pods = [pod("web")]
    cluster.pulls = [[pull("web", "Failed", image="shop/web:1", error="no such\x1b[2J host")]]
    run = plugin.run("web")
    assert run.code == 1
    assert 'the pull of "shop/web:1" failed: no such' in run.stderr
    assert "\x1b" not in run.stderr


@pytest.mark.parametrize("how", ["plain", "bar", "json"])
def test_nothing_of_a_name_moves_the_terminal(cluster: Cluster, plugin: Plugin, how: str) -> None:
    """Users who create pods choose image names; a compromised node can send any other text."""
    evil = "\x1b]0;gone\x07\x1b[2J\r\u202e"
    failed = pull(f"web{evil}", "Failed", node=f"n1{evil}", namespace=f"shop{evil}", image=evil)
    failed["status"] |= {"error": f"no {evil}", "kubeletReason": f"Err{evil}"}
    more = pull("db", "Succeeded", progress=5 * MB, total=5 * MB, image=f"db{evil}:1")
    cluster.pulls = [[failed, more], []]
    run = plugin.run("-A", "--progress", how)
    shown = run.stdout + run.stderr
    assert "gone" in shown or "db" in shown
    assert not [escape for escape in ("\x1b]", "\x07", "\x1b[2J", "\u202e") if escape in shown], (
        shown
    )


def test_all_namespaces(cluster: Cluster, plugin: Plugin) -> None:
    both = [
        pull("web", progress=1 * MB, total=5 * MB),
        pull("dns", node="n2", namespace="kube-system", image="dns:1", total=2 * MB),
        pull("far", node="n3", unknown=True, error="no route to host"),
    ]
    done = [
        pull("web", "Succeeded", progress=5 * MB, total=5 * MB),
        pull("dns", "Succeeded", namespace="kube-system", node="n2", image="dns:1", total=2 * MB),
    ]
    cluster.pulls = [both, done]
    events = [event("MODIFIED", document) for document in done]
    cluster.watches = [Stream(events, 0.3, "hold")]
    run = plugin.run("-A")
    assert run.code == 0
    assert "web:1 on n1 for default/web done: 1 layer, 4.8 MiB" in run.stderr
    assert "dns:1 on n2 for kube-system/dns done: 1 layer, 1.9 MiB" in run.stderr
    assert "node n3 does not answer: no route to host" in run.stderr


def test_one_node(cluster: Cluster, plugin: Plugin) -> None:
    cluster.nodes = [NODE]
    cluster.pulls = [[pull("web", total=5), pull("db", "Failed", node="n2")]]
    done = event("MODIFIED", pull("web", "Succeeded", total=5))
    cluster.watches = [Stream([done], 0.3, "hold")]
    run = plugin.run("--node=n1", "--progress=json")
    assert run.code == 0
    assert {item["image"] for item in run.objects} == {"web:1"}
    assert asked(cluster, "imagepulls?fieldSelector=spec.nodeName%3Dn1")


def test_who_may_not_see_nodes_may_see_pulls(cluster: Cluster, plugin: Plugin) -> None:
    cluster.api.tokens["root"] = Token(User("viewer"))
    cluster.permit("viewer", GROUP, "imagepulls")
    cluster.pulls = [[pull("web", "Succeeded", total=5)]]
    assert plugin.run("--node=n1").code == 0


@pytest.mark.parametrize("words", [("-lapp=web",), ("deploy/web",)])
def test_pods_by_their_labels(cluster: Cluster, plugin: Plugin, words: tuple[str, ...]) -> None:
    cluster.pods = [pod("web-1", app="web"), pod("db", app="db")]
    selector = {"matchLabels": {"app": "web"}}
    metadata = {"name": "web", "namespace": "default"}
    cluster.deployments = [
        {"kind": "Deployment", "apiVersion": "apps/v1", "metadata": metadata}
        | {"spec": {"selector": selector}}
    ]
    new = pull("web-2", "Succeeded", image="web:2", total=3)
    first = [pull("web-1", total=5, progress=1), pull("db", "Failed")]
    cluster.pulls = [first, [*first, new]]
    end = event("MODIFIED", pull("web-1", "Succeeded", total=5, progress=5), "5")
    cluster.watches = [Stream([event("ADDED", new)], 0.1, "hold"), Stream([end], 0.1, "hold")]
    process = plugin.start(*words, "--progress=json")
    wait_until(lambda: bool(asked(cluster, "watch")))
    cluster.pods.append(pod("web-2", app="web"))  # a rollout
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (0, "")
    images = {json.loads(line)["image"] for line in stdout.splitlines()}
    assert images == {"web:1", "web:2"}


def test_a_watch_that_is_too_old_begins_again(cluster: Cluster, plugin: Plugin) -> None:
    expired = {"type": "ERROR", "object": status(410, "too old", "Expired")}
    cluster.pulls = [
        [pull("web", total=5, progress=1)],
        [pull("web", "Succeeded", total=5, progress=5)],
    ]
    cluster.watches = [Stream([expired], 0.1)]
    run = plugin.run("-A")
    assert run.code == 0
    assert "done: 1 layer" in run.stderr
    assert "connecting again" not in run.stderr


def test_watches_that_break_again_and_again_end_it(cluster: Cluster, plugin: Plugin) -> None:
    cluster.pulls = [[pull("web", total=5, progress=1)]]
    cluster.watches = [Stream([], ending="cut")] * 30
    run = plugin.run("-A")
    assert run.code == 1
    assert "the watch of pulls broke off 7 times" in run.stderr
    assert len(asked(cluster, "watch")) == 7


NOTHING = [
    "no image is being pulled",
    "kubectl image-pull-progress: 'kubectl why' says what the pods wait for",
]


def test_a_pull_that_is_not_reported_any_more(cluster: Cluster, plugin: Plugin) -> None:
    document = pull("web", total=5, progress=1)
    cluster.pulls = [[document]]
    cluster.watches = [Stream([event("DELETED", document)], 0.1, "hold")]
    run = plugin.run("-A", "--progress", "plain")
    assert run.code == 0
    assert "the pull of web:1 on n1 is no longer reported" in run.stderr


def test_nothing_is_pulled(cluster: Cluster, plugin: Plugin) -> None:
    run = plugin.run()
    assert (run.code, run.stderr.splitlines()) == (0, NOTHING)


def test_a_pod_without_a_node_is_waited_for(cluster: Cluster, plugin: Plugin) -> None:
    cluster.pods = [pod("web", node="")]
    cluster.pulls = [[pull("web", "Waiting", node="")]]
    events = [event("ADDED", web(1)), event("MODIFIED", web(40))]
    cluster.watches = [Stream(events, 0.5, "hold")]
    process = plugin.start("web", "-f", "--progress", "plain")
    assert process.stderr is not None
    assert any("web:1 done: 1 layer" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 130
    assert rest.endswith("stopped watching; the pulls go on\n")


# What is refused


@pytest.mark.parametrize(
    ("words", "changes", "said", "hint"),
    [
        (["web"], {"versions": ()}, "the agent is not installed", "#in-a-cluster"),
        (["-A"], {"versions": ()}, "the agent is not installed", "#in-a-cluster"),
        (
            ["web", "--as=jane"],
            {},
            'User "jane" cannot list resource "imagepulls"',
            "bind the ClusterRole pycrictl-imagepulls-view: see kubectl create rolebinding --help",
        ),
        (
            ["-A", "--as=jane"],
            {},
            'cannot list resource "imagepulls"',
            "ClusterRole pycrictl-imagepulls-view: see kubectl create clusterrolebinding",
        ),
        (
            ["web"],
            {"refusals": [(404, b"404 page not found")]},
            "the cluster's agent is older than this program",
            "",
        ),
        (["--node=n7"], {}, 'nodes "n7" not found', "'kubectl get nodes' lists them"),
        (["nope"], {}, 'pods "nope" not found', ""),
        (["deployment/nope"], {}, 'deployments.apps "nope" not found', ""),
        (["web", "--token=expired"], {}, "does not accept the credential", "log in again"),
        (["web", "--context=y"], {}, "context", "kubectl options"),
        (["web", "--server=https://127.0.0.1:1"], {}, "127.0.0.1:1 was refused", "config view"),
        (["web", "-A"], {}, "an object given by name is in one namespace", ""),
        (["web", "-lapp"], {}, "not both", ""),
        (["-n", "a", "-A"], {}, "exclude each other", ""),
        ([""], {}, "the name of the pod is empty", ""),
        (["--", "--all"], {}, 'invalid pod name: "--all"', ""),
        (["--node=a/b"], {}, 'invalid node name: "a/b"', ""),
        (["web", "-nShop"], {}, 'invalid namespace name: "Shop"', ""),
        (["--frobnicate"], {}, 'unknown option "--frobnicate"', ""),
        (["--progress=loud"], {}, "invalid value for '--progress': 'loud'", ""),
    ],
)
def test_what_is_refused(
    cluster: Cluster,
    plugin: Plugin,
    words: list[str],
    changes: dict[str, Any],
    said: str,
    hint: str,
) -> None:
    cluster.pods = [pod("web")]
    cluster.permit("jane", "", "pods")
    for name, value in changes.items():
        setattr(cluster, name, value)
    run = plugin.run(*words)
    assert run.code == 1
    first, *rest = run.stderr.splitlines(keepends=True)
    assert first.startswith("kubectl image-pull-progress: ")
    assert said in first
    assert len(rest) <= 1
    assert hint in "".join(rest)


def test_kubectl_is_not_installed(plugin: Plugin) -> None:
    plugin.environ["PATH"] = plugin.environ["PATH"].partition(":")[0]
    run = plugin.run("web")
    assert (run.code, run.stderr.splitlines()) == (
        1,
        [
            "kubectl image-pull-progress: kubectl is not installed, or not on PATH",
            "hint: see https://kubernetes.io/docs/tasks/tools/",
        ],
    )


# How it ends


@pytest.mark.parametrize("words", [("web",), ("-A",)])
def test_ctrl_c(cluster: Cluster, plugin: Plugin, words: tuple[str, ...]) -> None:
    cluster.pods = [pod("web")]
    cluster.pulls = [[web(1)]]
    process = plugin.start(*words)
    wait_until(lambda: bool(asked(cluster, "watch")))
    wait_until(lambda: not list(plugin.runtime.iterdir()))
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr.endswith("kubectl image-pull-progress: stopped watching; the pulls go on\n")
    assert plugin.proxies() == []


def test_killed(cluster: Cluster, plugin: Plugin) -> None:
    cluster.pods = [pod("web")]
    cluster.pulls = [[web(1)]]
    process = plugin.start("web")
    wait_until(lambda: bool(asked(cluster, "watch")))
    assert len(plugin.proxies()) == 1
    process.kill()
    process.communicate(timeout=60)
    wait_until(lambda: plugin.proxies() == [])
    assert not list(plugin.runtime.iterdir())


def test_kubectl_is_killed(cluster: Cluster, plugin: Plugin) -> None:
    cluster.pods = [pod("web")]
    cluster.pulls = [[web(1)], [web(40)]]
    process = plugin.start("web")
    wait_until(lambda: bool(asked(cluster, "watch")))
    (proxy,) = plugin.proxies()
    os.kill(proxy, signal.SIGKILL)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "the connection to the cluster broke off; connecting again" in stderr


def test_nobody_else_gets_through_the_proxy(cluster: Cluster, plugin: Plugin) -> None:
    """The proxy's socket must give access to the agent's API only."""
    cluster.pods = [pod("web")]
    cluster.pulls = [[web(1)]]
    process = plugin.start("web")
    wait_until(lambda: bool(asked(cluster, "watch")))
    ways = Path(f"/proc/{process.pid}/fd").iterdir()
    (socket,) = (path for path in ways if str(path.readlink()).endswith("/s (deleted)"))
    answer = _get(str(socket), "/api/v1/namespaces/default/secrets")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert answer.startswith(b"HTTP/1.1 403 ")


def _get(path: str, target: str) -> bytes:
    import socket

    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        client.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return client.recv(4096)
