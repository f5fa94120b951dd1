"""``kubectl why -A`` in a large cluster: kubectl is the real one, the API server a stand-in."""

from __future__ import annotations

import json
import select
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from urllib.parse import parse_qs, urlsplit

from benchmarks.harness import Benchmark, CannotRunError, Goal, Measured
from tests.cluster.kubectl.plugin import Plugin, plugin_in
from tests.processes import peak_bytes
from tests.serving import Handler, serving

PODS = 5000
NODES = 200
SICK = 50
DEPLOYMENTS = 500
EVENTS = 1000
ROUNDS = 5
RECORDED = Path(__file__).parents[1] / "tests/diagnosis/recorded/cluster.jsonl"
"""Objects of a real cluster, as its API server wrote them."""

FIELDS: dict[str, Any] = {
    f"f:{number}": {"f:type": {}, "f:status": {}, ".": {}} for number in range(40)
}
MIB = 2**20


class Cost(NamedTuple):
    """The shortest wall time of some runs, and the peak memory of one."""

    wall_s: float
    peak: int


def _cluster() -> dict[str, list[dict[str, Any]]]:
    """Return recorded objects, as often as a large cluster has them, by resource."""
    kinds: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in RECORDED.read_text().splitlines():
        document = json.loads(line)
        kinds[document["kind"]].append(document)
    sick = [pod for pod in kinds["Pod"] if not _is_ready(pod)]
    return {
        "pods": [*_copies(filter(_is_ready, kinds["Pod"]), PODS - SICK), *_copies(sick, SICK)],
        "nodes": _copies(kinds["Node"], NODES),
        "deployments": _copies(filter(_is_ready, kinds["Deployment"]), DEPLOYMENTS),
        "replicasets": _copies(filter(_is_ready, kinds["ReplicaSet"]), 2 * DEPLOYMENTS),
        "events": _copies(kinds["Event"], EVENTS),
    }


def _is_ready(recorded: dict[str, Any]) -> bool:
    status, wanted = recorded["status"], recorded["spec"].get("replicas")
    conditions = [
        (condition["type"], condition["status"]) for condition in status.get("conditions", ())
    ]
    return status.get("readyReplicas") == wanted if wanted else ("Ready", "True") in conditions


def _copies(recorded: Iterable[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    """Return copies with names of their own, and with managed fields, which recordings lack."""
    copies = []
    for at, document in zip(range(number), cycle(recorded), strict=False):
        own = {"name": f"{document['metadata']['name']}-{at}", "uid": f"uid-{at}"}
        fields = [{"manager": "kubelet", "operation": "Update", "fieldsV1": FIELDS}]
        copies.append(
            {**document, "metadata": {**document["metadata"], **own, "managedFields": fields}}
        )
        if "nodeName" in document.get("spec", {}):
            copies[-1]["spec"] = {**document["spec"], "nodeName": f"vm-{at % NODES}"}
    return copies


class _Api(Handler):
    """Answers lists, in pages as they are asked for; each page is encoded once."""

    objects: ClassVar[dict[str, list[bytes]]] = {}

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        items = self.objects.get(url.path.rpartition("/")[2], [])
        begin = int(query.get("continue", 0))
        end = begin + int(query.get("limit", len(items) or 1))
        metadata = {"resourceVersion": "1", **({"continue": str(end)} if end < len(items) else {})}
        head = f'{{"kind":"List","metadata":{json.dumps(metadata)},"items":['.encode()
        body = head + b",".join(items[begin:end]) + b"]}"
        self.send(200, body)


@contextmanager
def _served(folder: Path) -> Iterator[Path]:
    """Serve a cluster; yield a kubeconfig for it."""
    _Api.objects = {
        resource: [json.dumps(item).encode() for item in some]
        for resource, some in _cluster().items()
    }
    with serving(_Api) as port:
        kubeconfig = {
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": ""}}],
            "current-context": "x",
        }
        path = folder / "kubeconfig"
        path.write_text(json.dumps(kubeconfig))
        yield path


@cache
def measure() -> Cost:
    with tempfile.TemporaryDirectory() as name, _served(Path(name)) as kubeconfig:
        plugin = plugin_in(Path(name), Path(name), kubeconfig)
        plugin.name = "kubectl-why"
        costs = [_run(plugin) for _ in range(ROUNDS)]
        return Cost(*map(min, zip(*costs, strict=True)))


def _run(plugin: Plugin) -> Cost:
    begun_at = time.monotonic()
    with plugin.start("-A") as process:
        assert process.stdout is not None
        peak = 0
        # Not wait4: its figures for a new process include the process that started it.
        while not select.select([process.stdout], [], [], 0.01)[0]:
            peak = peak_bytes(process.pid)
        output = process.stdout.read()
    took_s = time.monotonic() - begun_at
    if len(output.splitlines()) < SICK:
        raise CannotRunError("kubectl why -A finds too little")
    return Cost(took_s, peak)


BENCHMARKS = (
    Benchmark(
        name="why",
        text="wall time of 'kubectl why -A' of 5,000 pods on 200 nodes / 2 s",
        goal=Goal("<=", 1.0),
        show=lambda seconds: f"{seconds:.2f} s",
        measure=lambda: Measured(measure().wall_s, 2.0, measure().wall_s / 2.0),
    ),
    Benchmark(
        name="why-memory",
        text="peak memory of the same 'kubectl why -A' / 150 MiB",
        goal=Goal("<=", 1.0),
        show=lambda size: f"{size / MIB:.0f} MiB",
        measure=lambda: Measured(measure().peak, 150 * MIB, measure().peak / (150 * MIB)),
    ),
)
