"""Records what a cluster or a node says of its pods, for tests that tell causes without a cluster.

``python -m tests.diagnosis.record cluster FILE [OLD=NEW ...]``, with kubectl's current context, and
``python -m tests.diagnosis.record node ENDPOINT FILE [OLD=NEW ...]`` on a node, with its journal
and its kubelet's credential. Each line of FILE is one object or answer; ``OLD=NEW`` removes names
of machines, folders and registries.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import NotFound
from pycrictl.kube.apiclient import ApiClient
from pycrictl.kube.credential import find_credential
from pycrictl.node import journal
from pycrictl.runtime.cri.calls.client import CriClient

KINDS = (
    *("pods", "events", "nodes", "deployments", "replicasets", "statefulsets", "daemonsets"),
    *("jobs", "cronjobs", "persistentvolumeclaims"),
)
LOG_CHARS = 200
OFTEN = 2
"""How many lines of one kind the journal keeps of each pod."""

_NOISE = ("MissingClusterDNS", "KubeAPIReadyz")
_POD = r'[ \\]pods?=\\?"?(?P<a>[a-z0-9-]+/[a-z0-9.-]+)|Name:(?P<b>[^,]+),Uid|(?P<c>[0-9a-f-]{36})'

Document = dict[str, Any]


def cluster() -> Iterator[Document]:
    words = ["kubectl", "get", ",".join(KINDS), "--all-namespaces", "--output=json"]
    for one in json.loads(subprocess.run(words, capture_output=True, check=True).stdout)["items"]:
        if one["kind"] == "Event" and (one["type"] == "Normal" or one["reason"] in _NOISE):
            continue
        one["metadata"].pop("managedFields", None)
        if one["kind"] == "Node":
            one["status"] = {"conditions": one["status"].get("conditions", [])}
        yield one


def node(endpoint: str) -> Iterator[Document]:
    api = ApiClient(lambda: find_credential(Path("/"), timeout_s=5.0), timeout_s=5.0)
    pods = api.get("/api/v1/pods", {"fieldSelector": f"spec.nodeName={api.node}"})["items"]
    for pod in pods:
        pod["metadata"].pop("managedFields", None)
    yield from ({"kind": "Pod", **pod} for pod in pods)
    shown = api.get(f"/api/v1/nodes/{api.node}")
    yield {
        **shown,
        "metadata": {"name": api.node},
        "status": {"conditions": shown["status"]["conditions"]},
    }
    with CriClient(endpoint.removeprefix("unix://"), timeout_s=20) as client:

        def answer(name: str, **fields: Any) -> Document:
            message = client.call(name, getattr(cri_pb2, f"{name}Request")(**fields))
            return {"kind": name, **MessageToDict(message, preserving_proto_field_name=True)}

        sandboxes, containers = answer("ListPodSandbox"), answer("ListContainers")
        yield from (sandboxes, containers, answer("Status"), answer("ImageFsInfo"))
        for one in sandboxes["items"]:
            with suppress(NotFound):
                yield answer("PodSandboxStatus", pod_sandbox_id=one["id"])
        for one in containers["containers"]:
            with suppress(NotFound):
                found = answer("ContainerStatus", container_id=one["id"])
                yield found
                yield from files(found["status"])
        yield answer("ListImages")
    yield from (
        {"kind": "JournalLine", **one._asdict()} for one in thinned(journal.read(0, timeout_s=60))
    )


def files(status: Document) -> Iterator[Document]:
    """Iterate over the ends of a container's log and of its termination message."""
    mounts = {one["container_path"]: one["host_path"] for one in status.get("mounts", ())}
    for path in (status["log_path"], mounts.get("/dev/termination-log", "")):
        with suppress(OSError):
            text = Path(path).read_text(errors="replace")[-LOG_CHARS:]
            yield {"kind": "File", "path": path, "text": text}


def thinned(lines: list[journal.JournalLine]) -> list[journal.JournalLine]:
    """Return the last lines of each kind about each pod, with what follows them."""
    kept: list[journal.JournalLine] = []
    seen: dict[tuple[str | None, ...], int] = {}
    rest: list[journal.JournalLine] = []
    for line in reversed(lines):
        if line.message.startswith(("\t", " ")):
            rest.append(line)
            continue
        found = re.search(_POD, line.message)
        if found is not None and " MissingClusterDNS" not in line.message:
            kind = re.sub(r'[^A-Za-z"]+', " ", line.message.partition("] ")[2] or line.message)[:60]
            reason = re.search(r" with (\w+): ", line.message)
            key = (str(next(filter(None, found.groups()))), kind, reason and reason[1])
            seen[key] = seen.get(key, 0) + 1
            if seen[key] <= OFTEN:
                kept += [*rest, line]
        rest = []
    return kept[::-1]


def main(what: str, *words: str) -> None:
    if what == "node":
        endpoint, file, *changes = words
        documents = node(endpoint)
    else:
        file, *changes = words
        documents = cluster()
    text = "".join(f"{json.dumps(one, separators=(',', ':'))}\n" for one in documents)
    for change in changes:
        old, _, new = change.partition("=")
        text = text.replace(old, new)
    header = json.dumps({"kind": "Recording", "at_s": time.time()})
    Path(file).write_text(f"{header}\n{text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
