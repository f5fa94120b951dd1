"""Events of a whole proxy, as a stand-in of an API server gets them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakecri import FakeServer
from tests.kube.apiserver import NODE, ApiServer, make_node_certificates, serve, write_kubeconfig
from tests.proxy.program import Program
from tests.proxy.pulls.test_limiter import Gate, pod, prepare
from tests.waiting import wait_until

Start = Callable[..., Program]


@pytest.fixture
def api(run_folder: Path) -> Iterator[ApiServer]:
    with serve(make_node_certificates(run_folder)) as server:
        yield server


@pytest.fixture
def kubeconfig(api: ApiServer, tmp_path: Path) -> str:
    return str(write_kubeconfig(api.kubeconfig(), tmp_path))


def test_an_event_is_created_and_changed(
    fake: FakeServer, start: Start, api: ApiServer, kubeconfig: str
) -> None:
    gate = Gate()
    prepare(fake, gate)
    proxy = start("--max-parallel-image-pulls", "1", "--events", kubeconfig)
    first = proxy.kubelet.start_pull("a/first:1", pod("first"))
    wait_until(lambda: gate.running == 1)
    second = proxy.kubelet.start_pull("a/second:1", pod("second"))
    wait_until(lambda: len(api.asked) == 2)
    (how, path, event), (_, _, other) = api.asked
    assert (how, path) == ("POST", "/api/v1/namespaces/default/events")
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "default",
        "name": "first",
        "uid": "uid-first",
    }
    assert (event["reason"], event["type"], event["count"]) == ("PullProgress", "Normal", 1)
    assert event["source"] == {"component": "pycrictl", "host": NODE}
    assert event["message"].startswith("Pulling image a/first:1 for ")
    assert other["message"] == "Image a/second:1 waits for a slot: next in line"
    gate.open.set()
    assert first.result(60).image_ref
    assert second.result(60).image_ref
    wait_until(lambda: len(api.asked) >= 4)
    changes = {path: body for how, path, body in api.asked if how == "PATCH"}
    last = changes[f"/api/v1/namespaces/default/events/{event['metadata']['name']}"]
    assert last["message"].startswith("Image a/first:1 was pulled in ")
    assert last["count"] == 2
    assert "involvedObject" not in last


def test_a_call_a_second_at_most(
    fake: FakeServer, start: Start, api: ApiServer, kubeconfig: str
) -> None:
    gate = Gate()
    prepare(fake, gate)
    proxy = start("--events", kubeconfig)
    futures: list[Any] = [proxy.kubelet.start_pull(f"a:{n}", pod(f"p{n}")) for n in range(8)]
    wait_until(lambda: bool(api.asked))
    began, before = time.monotonic(), len(api.asked)
    time.sleep(3.5)
    assert len(api.asked) - before <= time.monotonic() - began
    assert len(api.asked) >= 3
    gate.open.set()
    assert all(future.result(60).image_ref for future in futures)


def test_an_api_server_that_hangs_delays_nothing(
    fake: FakeServer, start: Start, api: ApiServer, kubeconfig: str
) -> None:
    gate = Gate()
    prepare(fake, gate)
    api.silence = threading.Event()
    proxy = start("--events", kubeconfig)
    held = proxy.kubelet.start_pull("a/b:1", pod("web"))
    wait_until(lambda: bool(api.asked))
    gate.open.set()
    began = time.monotonic()
    assert held.result(60).image_ref
    proxy.terminate()
    assert proxy.wait() == 0
    assert time.monotonic() - began < 4.5  # it is asked for 5 s


@pytest.mark.parametrize("text", ["{", json.dumps({"clusters": []}), None])
def test_without_a_good_kubeconfig_there_is_one_line(
    fake: FakeServer, start: Start, tmp_path: Path, text: str | None
) -> None:
    gate = Gate()
    prepare(fake, gate)
    file = tmp_path / "kubeconfig"
    if text is not None:
        file.write_text(text)
    proxy = start("--events", str(file))
    held: Any = proxy.kubelet.start_pull("a/b:1", pod("web"))
    wait_until(lambda: " no_events " in proxy.log())
    gate.open.set()
    assert held.result(60).image_ref
    assert proxy.log().count(" no_events ") == 1
    assert "Traceback" not in proxy.log()


def test_an_event_that_is_there_or_gone(
    fake: FakeServer, start: Start, api: ApiServer, kubeconfig: str
) -> None:
    gate = Gate()
    prepare(fake, gate)
    api.refusals["POST"] = 409
    proxy = start("--events", kubeconfig)
    held = proxy.kubelet.start_pull("a/b:1", pod("web"))
    wait_until(lambda: len(api.asked) == 2)
    api.refusals = {"PATCH": 404}
    gate.open.set()
    assert held.result(60).image_ref
    wait_until(lambda: len(api.asked) == 4)
    assert [how for how, _, _ in api.asked] == ["POST", "PATCH", "PATCH", "POST"]
    assert api.asked[3][2]["involvedObject"]["name"] == "web"
    assert " no_events " not in proxy.log()


def test_an_api_server_that_refuses_is_left_alone(
    fake: FakeServer, start: Start, api: ApiServer, kubeconfig: str
) -> None:
    gate = Gate()
    prepare(fake, gate)
    api.refusals["POST"] = 403
    proxy = start("--events", kubeconfig)
    futures: list[Any] = [proxy.kubelet.start_pull(f"a:{n}", pod(f"p{n}")) for n in range(3)]
    wait_until(lambda: " no_events " in proxy.log())
    time.sleep(2.0)
    assert len(api.asked) == 1
    gate.open.set()
    assert all(future.result(60).image_ref for future in futures)
