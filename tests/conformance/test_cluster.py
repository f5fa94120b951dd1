"""The kubelet's routes and the API server's subresource: access, status codes and format."""

from __future__ import annotations

import pytest

from .cluster import ROUTE, UPGRADE, Answer, Cluster, Pod
from .rules import COPY, OPEN, PROGRESS, SKEW, rule

KUBELET = "KEP-5334, Proposed changes to the kubelet"
APISERVER = "KEP-5334, Proposed changes to the apiserver"
VERSIONS = "KEP-5334, Version Skew Strategy"
SWITCH = "KEP-5334, Feature Enablement and Rollback"

OFF = b"Debug endpoints are disabled."
NUMBERS, TEXTS = ("progress", "total"), ("image", "layer", "error")
UNKNOWN = Pod("default", "no-such-pod", "no-such-container")
UNUSED = Pod("no-such-namespace", "no-such-pod")


@pytest.fixture
def routes(cluster: Cluster) -> tuple[tuple[str, ...], ...]:
    return cluster.pod[:2], cluster.pod[:3]


Routes = tuple[tuple[str, ...], ...]


# The kubelet


@rule(
    "A1", "Without a credential, or with a made-up one, the kubelet's routes answer 401.", KUBELET
)
def test_who_asks_must_be_known(cluster: Cluster, routes: Routes) -> None:
    for words in routes:
        assert cluster.ask_kubelet(*words, token="", reads=False).status == 401
        assert cluster.ask_kubelet(*words, token="made-up", reads=False).status == 401


@rule("A2", "A user without the right to the node's proxy gets 403.", KUBELET)
def test_who_asks_must_be_allowed(cluster: Cluster, routes: Routes) -> None:
    cluster.need("stranger")
    for words in routes:
        found = cluster.ask_kubelet(*words, token=cluster.stranger, reads=False)
        assert found.status == 403


@rule("A3", "A pod that is not on the node gets 404, and so does an unknown namespace.", KUBELET)
def test_an_unknown_pod(cluster: Cluster) -> None:
    assert cluster.ask_kubelet(*UNKNOWN[:2]).status == 404
    assert cluster.ask_kubelet(UNUSED.namespace, cluster.pod.name).status == 404


@rule("A4", "A container that the pod does not have gets 404.", OPEN)
def test_an_unknown_container(cluster: Cluster) -> None:
    assert cluster.ask_kubelet(*cluster.pod[:2], UNKNOWN.container).status == 404


@rule("A5", "A method that the routes do not have gets 405.", KUBELET)
def test_only_get(cluster: Cluster, routes: Routes) -> None:
    for words in routes:
        for method in ("PUT", "DELETE"):
            assert cluster.ask_kubelet(*words, method=method, reads=False).status == 405


@rule("A6", "A parameter that cannot be read gets 400.", OPEN)
def test_a_bad_parameter(cluster: Cluster) -> None:
    *_, name = cluster.pod[:2]
    bad = f"{name}?timeoutSeconds=soon"
    assert cluster.ask_kubelet(cluster.pod.namespace, bad, reads=False).status == 400


@rule("A7", "A refused upgrade ends its connection: nothing behind it is read as a request.", OPEN)
def test_a_refused_upgrade(cluster: Cluster) -> None:
    cluster.ask_kubelet(*cluster.pod[:2], reads=False)
    path = "/".join((ROUTE, *cluster.pod[:2]))
    assert cluster.answers(path, "") == ([401], True)
    path = "/".join((ROUTE, *UNKNOWN[:2]))
    assert cluster.answers(path, cluster.token) == ([404], True)


@rule("A8", "A request to upgrade gets 101, or 200 as if it had not asked.", PROGRESS)
def test_an_upgrade(cluster: Cluster) -> None:
    found = cluster.ask_kubelet(*cluster.pod[:2], headers=UPGRADE, reads=False)
    assert found.status in (101, 200)


@rule("A9", "Without an upgrade a stream is one JSON object a line, in the KEP's form.", PROGRESS)
def test_the_plain_form(cluster: Cluster) -> None:
    found = cluster.ask_kubelet(*cluster.pod[:2])
    assert found.status == 200
    for record in found.records:
        assert all(type(record[name]) is int for name in NUMBERS), record
        assert all(isinstance(record.get(name, ""), str) for name in TEXTS), record


@rule("A10", "The route of a container is about its image alone.", KUBELET)
def test_one_container(cluster: Cluster) -> None:
    cluster.need("pod")
    of_pod = images(cluster.ask_kubelet(*cluster.pod[:2]))
    of_container = images(cluster.ask_kubelet(*cluster.pod[:3]))
    assert of_container <= of_pod
    assert len(of_container) <= 1


# The API server


@rule(
    "A11",
    "The subresource answers 401 or 403 without a credential, and 403 without a right.",
    APISERVER,
)
def test_the_subresource_is_for_who_may(cluster: Cluster) -> None:
    cluster.need("stranger")
    pod = cluster.pod[:2]
    assert cluster.ask_api(*pod, token="", reads=False).status in (401, 403)
    assert cluster.ask_api(*pod, token="made-up", reads=False).status == 401
    assert cluster.ask_api(*pod, token=cluster.stranger, reads=False).status == 403


@rule(
    "A12",
    "The subresource answers 404 for an unknown pod, 400 for an unknown container.",
    APISERVER,
)
def test_what_the_subresource_does_not_find(cluster: Cluster) -> None:
    assert cluster.ask_api(*UNKNOWN[:2]).status == 404
    found = cluster.ask_api(*cluster.pod[:2], f"?container={UNKNOWN.container}")
    assert found.status == 400


@rule("A13", "The subresource reports on the same images as the kubelet's route.", APISERVER)
def test_the_same_stream(cluster: Cluster) -> None:
    found = images(cluster.ask_api(*cluster.pod[:2]))
    cluster.need("kubelet")
    assert found == images(cluster.ask_kubelet(*cluster.pod[:2]))


# Version skew, and the switch


@rule(
    "A14", "A route that is not known gets 404 or 405, which clients take as not offered.", VERSIONS
)
def test_skew(cluster: Cluster) -> None:
    if cluster.kubelet:
        for words in (cluster.pod[:1], (*cluster.pod[:3], "more")):
            assert cluster.ask_kubelet(*words, reads=False).status in SKEW
    if cluster.api:
        cluster.need("token", "pod")
        path = SKEWED.format(*cluster.pod)
        assert cluster.ask(cluster.api, path, reads=False).status in SKEW


SKEWED = "/api/v1/namespaces/{}/pods/{}/nosuchsubresource"


@rule("A15", "With enableDebuggingHandlers: false, a kubelet answers 405 and says so.", SWITCH)
def test_the_switch(cluster: Cluster) -> None:
    cluster.need("kubelet_off", "stranger", "pod_off")
    path, token = "/".join((ROUTE, *cluster.pod_off[:2])), cluster.stranger
    assert cluster.ask(cluster.kubelet_off, path, token="").status == 401
    assert cluster.ask(cluster.kubelet_off, path, token=token).status == 403
    check_off(cluster.ask(cluster.kubelet_off, path))


@rule("A16", "Then the API server has no stream and no copy of that node's pods, either.", SWITCH)
def test_the_switch_by_the_api(cluster: Cluster) -> None:
    cluster.need("pod_off")
    check_off(cluster.ask_api(*cluster.pod_off[:2]))
    if cluster.copies:
        check_off(cluster.begin_copy(cluster.pod_off))


# Copies


@rule("A17", "Copies need a credential (401 or 403) and a right (403).", COPY)
def test_copies_are_for_who_may(cluster: Cluster) -> None:
    cluster.need("stranger")
    assert cluster.begin_copy(cluster.pod, token="").status in (401, 403)
    assert cluster.begin_copy(cluster.pod, token=cluster.stranger).status == 403


@rule("A18", "A copy of an unknown pod gets 404; a path that is not absolute 400 or 422.", COPY)
def test_what_cannot_be_copied(cluster: Cluster) -> None:
    assert cluster.begin_copy(UNKNOWN).status == 404
    assert cluster.begin_copy(cluster.pod, "etc/hostname").status in (400, 422)
    assert cluster.begin_copy(cluster.pod, "/etc/../etc/hostname").status in (400, 422)


def images(found: Answer) -> set[str]:
    assert found.status == 200
    return {record["image"] for record in found.records if record.get("image")}


def check_off(found: Answer) -> None:
    assert found.status == 405
    assert OFF in found.body
