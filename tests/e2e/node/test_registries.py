"""Mirrors, proxies and logins of real registries: the program goes the way that pulls go."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.forwardproxy import ForwardProxy, forward_proxy
from tests.serving import free_port

from .daemon import Daemon
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
    document = json.loads(run.stdout)
    routes = [
        (route["url"], all(step["is_good"] is not False for step in route["steps"]))
        for route in document["facts"]["routes"]
    ]
    kinds = {"registry", "config-path"}
    findings = {
        finding["text"]: finding["severity"]
        for finding in document["findings"]
        if finding["kind"] in kinds
    }
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


LOGIN_CONFIG = """\
version: 0.1
log: {{level: info, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {storage}}}}}
http: {{addr: "127.0.0.1:{port}"}}
auth: {{htpasswd: {{realm: private, path: {folder}/htpasswd}}}}
"""
HTPASSWD = "reader:$2b$04$nYaiukFC4.oyHGZZPMfUneXrurLKcCUkBhOPZ7gCMDJceHXTUfRie\n"  # s3cret


@pytest.fixture
def private(lab: Lab, folder: Path) -> Iterator[str]:
    """The registry of the lab, at an address where it requires a login."""
    port = free_port()
    config = folder / "private.yml"
    storage = lab.folder / "registry/storage"
    config.write_text(LOGIN_CONFIG.format(storage=storage, port=port, folder=folder))
    (folder / "htpasswd").write_text(HTPASSWD)
    daemon = Daemon(["docker-registry", "serve", config], folder / "private.log")
    daemon.start(lambda: "listening on" in daemon.log_path.read_text())
    try:
        yield f"127.0.0.1:{port}"
    finally:
        daemon.terminate()


def test_a_private_image(lab: Lab, private: str, folder: Path) -> None:
    name = f"{private}/{lab.push(lab.layout.image('way/c:1', [lab.base])).partition('/')[2]}"
    right, wrong, helped = (folder / file for file in ("right.json", "wrong.json", "helped.json"))
    for file, password in ((right, "s3cret"), (wrong, "no")):
        entry = {"username": "reader", "password": password}
        file.write_text(json.dumps({"auths": {private: entry}}))
    helper = folder / "docker-credential-lab"
    answer = json.dumps({"ServerURL": private, "Username": "reader", "Secret": "s3cret"})
    helper.write_text(f"#!/bin/sh\necho '{answer}'\n")
    helper.chmod(0o755)
    helped.write_text(json.dumps({"credHelpers": {private: "lab"}}))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        path = f"{folder}:{os.environ['PATH']}"
        command = [sys.executable, "-m", "pycrictl", "-t", "20s", "-r", lab.node.endpoint, *words]
        return subprocess.run(command, capture_output=True, text=True, env={"PATH": path})

    refused = run("pull", name)
    assert (refused.returncode, "refuses access" in refused.stderr) == (1, True)
    assert f"with the credentials of {wrong}" in run("pull", "--authfile", str(wrong), name).stderr
    for file in (right, helped):
        done = run("-D", "pull", "--authfile", str(file), name)
        assert (done.returncode, "s3cret" in done.stderr) == (0, False)
        lab.node.kubelet.remove_image(done.stdout.split()[-1])
    for file, said in ((right, "accepted"), (wrong, "refused")):
        run_ = run("doctor", "--registry", name, "--authfile", str(file), "-o", "json")
        (route,) = json.loads(run_.stdout)["facts"]["routes"]
        texts = {step["name"]: step["text"] for step in route["steps"]}
        assert texts["auth"].startswith(f"the credentials of {file} are {said}")
        assert ("first byte" in texts) == (said == "accepted")
