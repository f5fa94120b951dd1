"""Mirrors and proxies of a real containerd: the program goes the way that pulls go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.forwardproxy import ForwardProxy, forward_proxy

from .forked import Program
from .lab import MIB, Lab
from .node import Node

HOSTS = """
server = "http://proxied.invalid"
[host."http://127.0.0.1:1"]
[host."http://{registry}"]
"""


@pytest.fixture
def proxy(lab: Lab) -> Iterator[ForwardProxy]:
    with forward_proxy({"proxied.invalid": lab.registry.host}) as proxy:
        yield proxy


@pytest.fixture(params=["config_path", "mirrors"])
def node(
    request: pytest.FixtureRequest,
    lab: Lab,
    folder: Path,
    proxy: ForwardProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Node]:
    """A second containerd: a dead mirror, one that works, and a registry behind a proxy."""
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    registry: dict[str, Any] = {"config_path": str(folder / "certs.d")}
    if request.param == "mirrors":
        urls = ["http://127.0.0.1:1", f"http://{lab.registry.host}", "http://proxied.invalid"]
        registry = {"mirrors": {"proxied.invalid": {"endpoint": urls}}}
    hosts = folder / "certs.d/proxied.invalid/hosts.toml"
    hosts.parent.mkdir(parents=True)
    hosts.write_text(HOSTS.format(registry=lab.registry.host))
    node = Node(folder, lab.reference(lab.pause), cri={"registry": registry})
    node.start()
    monkeypatch.delenv("HTTP_PROXY")
    try:
        yield node
    finally:
        node.close()


def doctor(node: Node, name: str) -> tuple[list[tuple[str, bool]], dict[str, str]]:
    """Return the servers that were tested, with their results, and the findings on them."""
    with Program("-t", "20s", "-r", node.endpoint) as program:
        run = program.run("doctor", "--registry", name, "-o", "json")
    found = json.loads(run.stdout)
    routes = [
        (one["url"], all(step["is_good"] is not False for step in one["steps"]))
        for one in found["facts"]["routes"]
    ]
    kinds = {"registry", "config-path"}
    findings = {one["text"]: one["severity"] for one in found["findings"] if one["kind"] in kinds}
    return routes, findings


def test_mirrors_and_proxies_are_the_runtimes(lab: Lab, node: Node, proxy: ForwardProxy) -> None:
    image = lab.layout.image("way/a:1", lab.layout.random_layers([MIB], seed=760))
    lab.push(image)
    mirror, own = f"http://{lab.registry.host}", "http://proxied.invalid"
    with Program("-t", "20s", "-r", node.endpoint) as program:
        assert program.run("pull", "proxied.invalid/way/a:1").status == 0
        assert proxy.requests == []  # a mirror has it
        routes, findings = doctor(node, "proxied.invalid/way/a:1")
        assert routes == [("http://127.0.0.1:1", False), (mirror, True), (own, True)]
        assert proxy.requests
        dead = "mirror http://127.0.0.1:1 of proxied.invalid fails at TCP: connection refused"
        assert findings == {f"{dead}; pulls go on to {mirror}": "warning"}
        proxy.servers = {}
        _, findings = doctor(node, "proxied.invalid/way/a:1")
        assert list(findings.values()) == ["warning", "note"]
        assert list(findings)[1].startswith(
            f"{own} fails at auth through the proxy {proxy.url}: /v2/ is answered with 502"
        )
        failed = program.run("pull", "proxied.invalid/way/b:1")
    assert failed.status == 1
    assert (
        f"; asked again: http://127.0.0.1:1: connection refused; {mirror}: does not have it (404);"
        f" {own}: fails (502)\n"
    ) in failed.stderr
