"""Cost of ``kubectl get imagepulls -A`` for the agent that answers it.

The API server and the other agents are fakes in this process, with real HTTP and TLS; each of the
200 agents has a port of its own.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from aiohttp import web

from benchmarks.harness import Benchmark, CannotRunError, Goal, Measured
from benchmarks.programs import cpu_clock
from tests.cluster.agent.standing import OWN, pod, token_of
from tests.kube.apiserver import agent_flags, make_node_certificates
from tests.processes import peak_bytes
from tests.streams.servers import Certificates

NODES = 5000
PULLS = 300
AGENTS = 200
"""Nodes that are pulling images."""

LAYERS = 8
PADDING = "x" * 4000
"""Stands for the fields of a pod that are not read here: managed fields, volumes, conditions."""

PATH = "/apis/progress.pycrictl.dev/v1alpha1/imagepulls"
READY_S = 60.0


class Cost(NamedTuple):
    """CPU time and peak memory for one list."""

    cpu_s: float
    peak: int


@dataclass
class Fakes:
    """A large cluster, whose API server returns only the pending pods, as with a field selector."""

    certificates: Certificates
    front_proxy: Certificates
    agents: Certificates
    ports: list[int] = field(default_factory=list)

    def pending(self) -> list[dict[str, Any]]:
        agents = []
        for number in range(PULLS):
            document = pod(f"app-{number}", node=_node(number), image=_image(number))
            document["metadata"]["managedFields"] = [{"fieldsV1": PADDING}]
            agents.append(document)
        return agents

    async def api(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if request.query.get("watch"):
            await asyncio.sleep(300)
        if path == "/api/v1/pods":
            return web.json_response(
                {"metadata": {"resourceVersion": "7"}, "items": self.pending()}
            )
        if path.endswith("/configmaps"):
            config = {"metadata": {"name": "c", "uid": "c"}, "data": self.trust()}
            return web.json_response({"metadata": {"resourceVersion": "7"}, "items": [config]})
        if path.endswith("/endpointslices"):
            return web.json_response({"metadata": {}, "items": [*self.slices()]})
        return web.json_response({}, status=404)

    def trust(self) -> dict[str, str]:
        return {
            "requestheader-allowed-names": '["front-proxy-client"]',
            "requestheader-username-headers": '["X-Remote-User"]',
            "requestheader-uid-headers": '["X-Remote-Uid"]',
            "requestheader-group-headers": '["X-Remote-Group"]',
            "client-ca-file": Path(self.certificates.ca).read_text(),
            "requestheader-client-ca-file": Path(self.front_proxy.ca).read_text(),
        }

    def slices(self) -> list[dict[str, Any]]:
        """Return one EndpointSlice per port, since a slice has one port for all its endpoints."""
        agents = []
        for number, port in enumerate(self.ports):
            nodes = range(number, NODES, len(self.ports))
            endpoints = [{"addresses": ["127.0.0.1"], "nodeName": f"node-{node}"} for node in nodes]
            agents.append({"ports": [{"port": port}], "endpoints": endpoints})
        return agents

    def agent_of(self, number: int) -> Any:
        node = f"node-{number}"
        items = [_object(index, node) for index in range(number, PULLS, AGENTS)]
        body = json.dumps({"items": items}).encode()

        async def answer(_: web.Request) -> web.StreamResponse:
            return web.Response(body=body, content_type="application/json")

        return answer


def _node(number: int) -> str:
    return f"node-{number % AGENTS}"


def _image(number: int) -> str:
    return f"registry.example/team/app-{number}:1.2.3"


def _object(number: int, node: str) -> dict[str, Any]:
    layers = [
        {
            "name": f"sha256:{number:032x}{layer:032x}",
            "digest": f"sha256:{number:032x}{layer:032x}",
            "phase": "downloading",
            "progressBytes": 1_000_000,
            "totalBytes": 2_000_000,
        }
        for layer in range(LAYERS)
    ]
    return {
        "apiVersion": "progress.pycrictl.dev/v1alpha1",
        "kind": "ImagePull",
        "metadata": {
            "name": f"app-{number}.main",
            "namespace": "default",
            "uid": f"uid-{number}",
            "creationTimestamp": "2026-11-22T10:00:00Z",
        },
        "spec": {
            "podName": f"app-{number}",
            "podUID": f"uid-{number}",
            "containers": ["main"],
            "image": _image(number),
            "nodeName": node,
        },
        "status": {"phase": "Pulling", "percent": 50, "layers": layers},
    }


@asynccontextmanager
async def _served(fakes: Fakes) -> AsyncIterator[int]:
    runners = []

    async def serve(handler: Any, certificates: Certificates) -> int:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(application, access_log=None)
        runners.append(runner)
        await runner.setup()
        context = certificates.server_context()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context, shutdown_timeout=0.1)
        await site.start()
        return int(runner.addresses[0][1])

    try:
        for number in range(AGENTS):
            fakes.ports.append(await serve(fakes.agent_of(number), fakes.agents))
        yield await serve(fakes.api, fakes.certificates)
    finally:
        for runner in runners:
            await runner.cleanup()


@cache
def measure() -> Cost:
    """Return the cost of the first list that an agent serves."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        certificates = make_node_certificates(folder)
        front_proxy = Certificates(certificates.folder / "front-proxy")
        agents = Certificates(certificates.folder / "agents")
        return asyncio.run(_measure(folder, Fakes(certificates, front_proxy, agents)))


async def _measure(folder: Path, fakes: Fakes) -> Cost:
    (folder / "token").write_text(token_of(OWN))
    async with _served(fakes) as port:
        cluster = {"server": f"https://127.0.0.1:{port}"}
        cluster["certificate-authority"] = fakes.certificates.ca
        kubeconfig = {
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        (folder / "kubeconfig").write_text(json.dumps(kubeconfig))
        words = [
            sys.executable, "-m", "pycrictl", "agent", "--node-name", "elsewhere",
            "--listen", "127.0.0.1:0", "--kubeconfig", str(folder / "kubeconfig"),
            "--peer-token", str(folder / "token"), "--peer-namespace", "pycrictl",
            *agent_flags(fakes.agents),
        ]  # fmt: skip
        log = folder / "log"
        with log.open("w") as stderr, subprocess.Popen(words, stderr=stderr) as process:
            try:
                return await _ask(fakes, process.pid, await _ready(log))
            finally:
                process.terminate()


async def _ready(log: Path) -> int:
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        text = log.read_text()
        match = re.search(r"serving address=127\.0\.0\.1:(\d+)", text)
        if match and "trust proxy=True" in text:
            await asyncio.sleep(0.2)
            return int(match[1])
        await asyncio.sleep(0.05)
    raise CannotRunError(f"the agent did not begin to serve: {log.read_text()[-300:]}")


async def _ask(fakes: Fakes, pid: int, port: int) -> Cost:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(fakes.front_proxy.cert("client"), fakes.front_proxy.key("client"))
    connector = aiohttp.TCPConnector(ssl=context)
    headers = {"X-Remote-User": "admin"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        before = time.clock_gettime(cpu_clock(pid))
        async with session.get(f"https://127.0.0.1:{port}{PATH}") as response:
            document = await response.json()
            if len(document["items"]) != PULLS:
                raise CannotRunError(f"{len(document['items'])} pulls were listed")
            if "Warning" in response.headers:
                raise CannotRunError(response.headers["Warning"])
        await asyncio.sleep(0.2)
        return Cost(time.clock_gettime(cpu_clock(pid)) - before, peak_bytes(pid))


def _cpu() -> Measured:
    return Measured(measure().cpu_s, 1.0, measure().cpu_s)


def _memory() -> Measured:
    peak = measure().peak
    return Measured(peak, 128 * 2**20, peak / (128 * 2**20))


BENCHMARKS = (
    Benchmark(
        name="cluster",
        text="CPU time of a list of 300 pulls in 5,000 nodes at the answering agent / 1 s",
        goal=Goal("<=", 1.0),
        show=lambda seconds: f"{seconds:.2f} s",
        measure=_cpu,
    ),
    Benchmark(
        name="cluster-memory",
        text="peak memory of the agent that answers it / 128 MiB",
        goal=Goal("<=", 1.0),
        show=lambda size: f"{size / 2**20:.0f} MiB",
        measure=_memory,
    ),
)
