"""``top`` against the fake runtime: text, data, and refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import ConnectError
from pycrictl.cli.commands.diagnosing import Connection
from pycrictl.cli.commands.top import BoardPoller
from pycrictl.diagnosis.survey import Sources
from pycrictl.runtime.cri.calls.client import CriClient
from tests.cli.run import Run
from tests.fakecri.server import FakeServer
from tests.support.findings import NOW, no_journal
from tests.support.findings import node as offer_pods

__all__ = ["no_journal"]


def node(fake: FakeServer) -> None:
    offer_pods(fake, {"a/ok": None, "a/bad": 3})
    version = cri_pb2.VersionResponse(
        version="0.1.0", runtime_name="cri-o", runtime_version="1.36.0", runtime_api_version="v1"
    )
    fake.offer("Version", version)


def top(fake: FakeServer, *words: str) -> Run:
    words = ("-r", fake.endpoint, "top", "--no-kube", *words)
    return Run(*words, wall_clock=lambda: NOW)


def test_once_as_text_and_as_data(fake: FakeServer) -> None:
    node(fake)
    done = top(fake, "--once")
    assert (done.code, done.stderr) == (0, "")
    head, counts, *rows = done.stdout.splitlines()
    assert "cri-o 1.36.0" in head
    assert counts == "PODS 2   1 sick  1 running"
    assert rows == [
        "! a/bad  app  crashed   exit 3, about a minute ago",
        "  a/ok   app  running 2 hours",
    ]
    document = json.loads(top(fake, "-o", "json").stdout)
    assert [(row["pod"], row["state"]) for row in document["rows"]] == [
        ("a/bad", "sick"),
        ("a/ok", "running"),
    ]


def test_without_a_terminal_the_way_is_named(fake: FakeServer) -> None:
    done = top(fake)
    assert (done.code, done.stdout, fake.calls) == (1, "", [])
    assert done.stderr.splitlines() == [
        "pycrictl: top needs a terminal",
        "hint: 'pycrictl top --once' prints it as text",
    ]


@contextmanager
def connected(fake: FakeServer, *, is_there: bool = True) -> Iterator[Connection]:
    if not is_there:
        raise ConnectError("the runtime is away")
    with CriClient(fake.path, timeout_s=20) as client:
        yield client, client, Sources()


def test_a_runtime_that_goes_away_and_comes_back(fake: FakeServer) -> None:
    node(fake)
    is_there = True
    poller = BoardPoller(lambda: connected(fake, is_there=is_there), "n", wall_s=lambda: NOW)
    first = poller.poll()
    assert not first.problem
    poller.close()
    is_there = False
    away = poller.poll()
    assert (away.problem, away.rows, away.since_s) == ("the runtime is away", first.rows, NOW)
    is_there = True
    assert not poller.poll().problem
    poller.close()


def test_a_refresh_makes_no_more_calls_than_the_lists(fake: FakeServer) -> None:
    node(fake)
    poller = BoardPoller(lambda: connected(fake), "n", wall_s=lambda: NOW)
    poller.poll()
    before = len(fake.calls)
    poller.poll()
    calls = [call.method for call in fake.calls[before:]]
    poller.close()
    cri = [name for name in calls if not name.startswith("Stream")]
    assert sorted(cri) == ["ListContainers", "ListPodSandbox"]
