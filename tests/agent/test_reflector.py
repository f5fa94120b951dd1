"""What client-go's reflectors ask (recorded of kubectl 1.32 and 1.36), and what they must get."""

from __future__ import annotations

import json
import socket
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from tests.agent.standing import AUDIENCE, Cluster
from tests.serving import believing

PATH = f"/apis/{AUDIENCE}/v1alpha1/namespaces/default/imagepulls"
RECORDED = json.loads((Path(__file__).parent / "data/reflector.json").read_text())
LIST_ENDS = "k8s.io/initial-events-end"
STARTED = {"running": {"startedAt": "2026-11-22T10:00:05Z"}}


class Reflector:
    """Keeps a list as client-go does, by the requests that were recorded of one."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.agent = 0
        self.phases: dict[str, str] = {}
        self.version = ""

    def run(self, queries: list[str]) -> Generator[str, None, None]:
        """Iterate over the kinds of the events; "LISTED" when the list is known."""
        for query in queries:
            asked = query.replace("VERSION", self.version)
            if "watch=true" in asked:
                yield from self._watch(asked)
            else:
                self._list(asked)
                yield "LISTED"

    def _list(self, query: str) -> None:
        head, lines = self.ask(query)
        assert head.startswith(b"HTTP/1.1 200 ")
        document = json.loads(b"".join(lines))
        assert document["kind"] == "ImagePullList"
        self.version = document["metadata"]["resourceVersion"]
        assert int(self.version) > 0
        self.phases = {one["metadata"]["name"]: phase(one) for one in document["items"]}

    def _watch(self, query: str) -> Generator[str, None, None]:
        is_listing = "sendInitialEvents" in dict(parse_qsl(query))
        head, lines = self.ask(query)
        assert head.startswith(b"HTTP/1.1 200 ")
        for line in lines:
            event = json.loads(line)
            kind, document = event["type"], event["object"]
            assert document["kind"] == "ImagePull"
            assert int(document["metadata"]["resourceVersion"]) >= int(self.version or 0)
            self.version = document["metadata"]["resourceVersion"]
            name = document["metadata"]["name"]
            if kind == "BOOKMARK":
                if is_listing:
                    assert document["metadata"]["annotations"] == {LIST_ENDS: "true"}
                    is_listing = False
                    yield "LISTED"
                continue
            assert (kind == "ADDED") == (name not in self.phases)
            assert kind == "ADDED" or not is_listing
            if kind == "DELETED":
                del self.phases[name]
            else:
                self.phases[name] = phase(document)
            if not is_listing:
                yield kind

    def ask(self, query: str) -> tuple[bytes, Generator[bytes, None, None]]:
        """Ask as the front proxy does; the lines of the answer come as they are written."""
        proxy = self._cluster.api.front_proxy
        context = believing((proxy.cert("client"), proxy.key("client")))
        connection = context.wrap_socket(
            socket.create_connection(self._cluster.agents[self.agent].listener.address, timeout=60)
        )
        fields = ["Host: a", "X-Remote-User: reflector", "Connection: close"]
        request = "\r\n".join([f"GET {PATH}?{query} HTTP/1.1", *fields, "", ""])
        connection.sendall(request.encode())
        file = connection.makefile("rb")
        found = b""
        while (line := file.readline()) not in (b"\r\n", b""):
            found += line

        def lines() -> Generator[bytes, None, None]:
            with connection, file:
                if b"chunked" not in found:
                    yield file.read()
                    return
                rest = b""
                while size := int(file.readline() or b"0", 16):
                    rest += file.read(size)
                    file.readline()
                    *whole, rest = rest.split(b"\n")
                    yield from whole

        return found, lines()


def phase(document: Any) -> str:
    return str(document["status"]["phase"])


@pytest.mark.parametrize("recorded", RECORDED)
def test_a_list_that_is_kept(cluster: Cluster, recorded: str) -> None:
    cluster.start()
    cluster.add_pod("web")
    cluster.add_pod("far", namespace="other")
    reflector = Reflector(cluster)
    with closing(reflector.run(RECORDED[recorded])) as events:
        assert next(events) == "LISTED"
        assert reflector.phases == {"web.main": "Waiting"}
        cluster.add_pod("web", state=STARTED, phase="Running")
        assert next(events) in ("MODIFIED", "DELETED")  # lists of pods have only those that wait
    if "metadata.name" in RECORDED[recorded][0]:
        assert reflector.phases == {"web.main": "Succeeded"}


@pytest.mark.parametrize("recorded", [key for key, (_, *more) in RECORDED.items() if more])
def test_an_agent_that_was_started_anew(cluster: Cluster, recorded: str) -> None:
    """It does not know what a list had a moment ago: all is new to a watch, or a list is due."""
    cluster.start()
    cluster.add_pod("web")
    reflector = Reflector(cluster)
    query, watch = RECORDED[recorded]
    assert list(reflector.run([query])) == ["LISTED"]
    cluster.loop.run(cluster.agents.pop(0).stop())
    cluster.api.services.clear()
    cluster.start()
    cluster.add_pod("late")
    _, lines = reflector.ask(watch.replace("VERSION", reflector.version))
    with closing(lines):
        event = json.loads(next(lines))
    assert event["type"] == "ADDED" or event["object"]["code"] == 410
    assert list(reflector.run([query])) == ["LISTED"]
    assert "web.main" in reflector.phases
