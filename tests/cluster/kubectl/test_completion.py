"""Completions that kubectl gets when Tab is pressed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.kubectl.cluster import NODE, Cluster, pod
from tests.cluster.kubectl.plugin import Plugin


@pytest.fixture
def full(cluster: Cluster) -> Cluster:
    cluster.pods = [
        pod("web-1", namespace="shop"),
        pod("web-2", namespace="shop"),
        pod("db", namespace="shop"),
        pod("other"),
        pod("bad\x1b[2J", namespace="shop"),
    ]
    metadata = {"name": "web", "namespace": "shop"}
    cluster.deployments = [{"kind": "Deployment", "apiVersion": "apps/v1", "metadata": metadata}]
    cluster.nodes = [NODE]
    return cluster


def candidates(plugin: Plugin, *words: str) -> list[str]:
    run = plugin.complete(*words)
    assert (run.code, run.stderr) == (0, "")
    *lines, directive = run.stdout.splitlines()
    assert directive == ":4"
    return [line.partition("\t")[0] for line in lines]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["-n", "shop", ""], ["web-1", "web-2", "db"]),
        (["-nshop", "web"], ["web-1", "web-2"]),
        (["ot"], ["other"]),
        (["-n", "shop", "dep"], ["deployment/"]),
        (["-n", "shop", "deployment/"], ["deployment/web"]),
        (["web-1", "-nshop", "-c", ""], ["app"]),
        (["web-1", "-n=shop", "--container=a"], ["--container=app"]),
        (["--node", ""], ["n1"]),
        (["--progress", "j"], ["json"]),
        (["--al"], ["--all-namespaces"]),
        (["--help"], ["--help"]),
        (["-c", ""], []),
        (["--frobnicate=a", ""], []),
    ],
)
def test_candidates(full: Cluster, plugin: Plugin, words: list[str], wanted: list[str]) -> None:
    assert candidates(plugin, *words) == wanted


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["-n", "shop", ""], ["web-1:", "web-2:", "db:", ":2"]),
        (["-nshop", "f", "web"], ["web-1:", "web-2:", ":2"]),
        (["shop/w"], ["shop/web-1:", "shop/web-2:", ":2"]),
        (["./w"], [":2"]),
        (["-n", "shop", "web-1:/et"], [":2"]),
        (["shop/web-1:/a", "b", "-c", ""], ["app", ":4"]),
        (["a", "web-1:/a", "-n", "shop", "--container="], ["--container=app", ":4"]),
        (["--ret"], ["--retries", ":4"]),
        (["--progress", "p"], ["plain", ":4"]),
    ],
)
def test_copies(full: Cluster, plugin: Plugin, words: list[str], wanted: list[str]) -> None:
    run = plugin.complete(*words, name="container_cp")
    assert (run.code, run.stderr) == (0, "")
    assert [line.partition("\t")[0] for line in run.stdout.splitlines()] == wanted


def test_files_are_left_to_the_shell(full: Cluster, plugin: Plugin) -> None:
    assert plugin.complete("--kubeconfig", "").stdout == ":0\n"


def test_a_cluster_that_is_not_there(plugin: Plugin, tmp_path: Path) -> None:
    assert candidates(plugin, "--server=https://127.0.0.1:1", "") == []
    plugin.environ["PATH"] = plugin.environ["PATH"].partition(":")[0]
    assert candidates(plugin, "") == []


def test_a_cluster_that_hangs(cluster: Cluster, plugin: Plugin) -> None:
    plugin.environ["PYCRICTL_COMPLETION_TIMEOUT"] = "1ms"
    assert candidates(plugin, "") == []


def test_kubectl_asks(full: Cluster, plugin: Plugin) -> None:
    version = json.loads(plugin.by_kubectl("version", "--client", "-o", "json").stdout)
    if int(version["clientVersion"]["minor"].rstrip("+")) < 26:
        pytest.skip("this kubectl does not ask plugins")
    run = plugin.by_kubectl("__complete", "image-pull-progress", "-n", "shop", "web")
    assert [line.partition("\t")[0] for line in run.stdout.splitlines()] == ["web-1", "web-2", ":4"]
