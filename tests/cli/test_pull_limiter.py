from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from pycrictl.node.kubelet import KubeletConfig
from pycrictl.proxy.admin import AdminServer, Call
from pycrictl.proxy.operators import kubelet_document, status_document
from pycrictl.proxy.pulls.pull_calls import CallState, Policy, PullKey
from pycrictl.proxy.pulls.queue import PullQueue
from pycrictl.proxy.runtime_lookup import PodKey
from pycrictl.proxy.telemetry.history_file import append
from pycrictl.pulls.state import PullState, Sums
from tests.cli.run import Run
from tests.proxy.telemetry.records import record
from tests.pulls.tracking import sums

TABLE = """\
LIMIT   SLOTS TAKEN   WHEN FULL   LIMIT FROM
2       2/2           wait        flag

RUNNING   POD          FOR   DONE   BYTES                  RATE          ETA   ATTEMPT   JOINED
a/one     default/w1   20s   25 %   1.0 of 4.0 MiB         100.0 KiB/s   31s   1         1
a/two     -            19s   -      -                      -             -     1         0
a/there   default/w3   17s   -      - (present, no slot)   -             -     1         0

WAITING     POD          FOR   PLACE   STARTS IN   BEHIND                 JOINED
a/three     default/w3   16s   1       30.7s       any running pull       0
a/\\x1b[2J   default/w4   15s   2       -           a/three (default/w3)   0

JOINED   POD          WAITS FOR THE PULL OF
a/one    default/w2   default/w1

FAILED   POD          AGO   ATTEMPTS   ERROR
a/bad    default/w9   30s   1          the registry refuses access to it

kubelet: sends one pull at a time (serializeImagePulls), so the limit above is never reached; k.yaml
"""


def pod(name: str) -> PodKey:
    return PodKey("default", name, "uid")


def document() -> dict[str, Any]:
    queue = PullQueue(2, Policy.WAIT)
    queue.submit(1, PullKey("a/bad"), now=60, pod=pod("w9"))
    queue.end(1, CallState.FAILED, now=70, error="denied")
    queue.submit(2, PullKey("a/one"), now=80, pod=pod("w1"))
    queue.submit(3, PullKey("a/two"), now=81)
    queue.submit(4, PullKey("a/one"), now=82, pod=pod("w2"))
    queue.submit(5, PullKey("a/there"), now=83, pod=pod("w3"), is_present=True)
    queue.submit(6, PullKey("a/three"), now=84, pod=pod("w3"))
    queue.submit(7, PullKey("a/\x1b[2J"), now=85, pod=pod("w4"))
    seen = {"a/one": sums(1024**2, 4 * 1024**2, 100 * 1024.0, 30.72)}
    return {
        **status_document(
            queue,
            now=100,
            wall_s=1_000_000_000,
            seen=lambda name: PullState(sums=seen.get(name) or Sums()),
            limit_origin="flag",
        ),
        "kubelet": kubelet_document(KubeletConfig("k.yaml"), ""),
    }


@contextmanager
def serving(path: str, calls: Mapping[str, Call]) -> Iterator[str]:
    loop = asyncio.new_event_loop()
    server = AdminServer(calls)
    loop.run_until_complete(server.start(path))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield path
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def giving(answer: dict[str, Any]) -> Call:
    async def call(request: Mapping[str, Any]) -> dict[str, Any]:
        return answer

    return call


@pytest.fixture
def path(tmp_path: Path) -> Iterator[str]:
    """The socket of an admin service with the document above and a limit of 2."""

    async def set_limit(request: Mapping[str, Any]) -> dict[str, Any]:
        return {"limit": request["limit"], "before": 2}

    async def cancel(request: Mapping[str, Any]) -> dict[str, Any]:
        if request["target"] != "a/one":
            raise ValueError("no such pull waits")
        calls = [{"image": "a/one\x1b", "pod": "default/w1"}, {"image": "a/one", "pod": None}]
        return {"cancelled": calls}

    calls = {"status": giving(document()), "set-limit": set_limit, "cancel": cancel}
    with serving(str(tmp_path / "a.sock"), calls) as path:
        yield path


def limiter(path: str, *words: str) -> Run:
    return Run("pull-limiter", *words, "--admin-socket", path)


def test_the_table(path: str) -> None:
    run = limiter(path, "status")
    assert (run.code, run.stderr) == (0, "")
    assert run.stdout == TABLE
    run = Run("--debug", "pull-limiter", "status", "--admin-socket", path)
    assert "30s   1          denied\n" in run.stdout


def test_json_and_yaml_say_the_same(path: str) -> None:
    status = json.loads(limiter(path, "status", "-o", "json").stdout)
    assert limiter(path, "status", "-o", "jsonpath={.limit}").stdout == f"{status['limit']}\n"
    assert status == yaml.safe_load(limiter(path, "status", "-o", "yaml").stdout)
    assert status == document()
    assert status["running"][0]["since"] == "2001-09-09T01:46:20.000Z"
    assert status["waiting"][1]["behind"] == "a/three"


def test_set(path: str) -> None:
    run = limiter(path, "set", "7")
    assert (run.code, run.stdout) == (0, "limit 2 -> 7\n")


def test_cancel(path: str) -> None:
    run = limiter(path, "cancel", "a/one")
    assert (run.code, run.stdout) == (0, "cancelled: a/one\\x1b (default/w1)\ncancelled: a/one\n")
    assert limiter(path, "cancel", "b").stderr == "pycrictl: no such pull waits\n"


@pytest.mark.parametrize(
    "line",
    [
        *("", "cancel", "set", "set x", "set -1", "set " + "9" * 5000, "status 3", "stop"),
        *("status --failed", "history --sort-by rate", "history --no-headers"),
        *("history 1", "history --since soon"),
    ],
    ids=lambda line: line[:20],
)
def test_wrong_words(path: str, line: str) -> None:
    run = limiter(path, *line.split())
    assert (run.code, run.stdout) == (1, "")
    assert run.stderr.startswith("pycrictl: ")


def test_no_proxy(tmp_path: Path) -> None:
    run = limiter(str(tmp_path / "none"), "status")
    assert run.code == 1
    assert "no such file or directory" in run.stderr
    assert "is 'pycrictl proxy' running?" in run.stderr


# History

NOW_S = 1_700_000_100.0

HISTORY = """\
ENDED                  IMAGE   POD           WAITED   PULLED   GOT       REUSED    RATE        \
ATTEMPTS   OUTCOME
2023-11-14T22:13:20Z   a/b:1   default/web   2s       4s       8.0 MiB   1.0 KiB   2.0 MiB/s   \
1          pulled
2023-11-14T22:14:20Z   a/b:1   default/db    2s       3s       8.0 MiB   1.0 KiB   2.7 MiB/s   \
1          pulled (shared)
2023-11-14T22:14:50Z   c/d:2   -             0s       1.5s     -         -         -           \
3          failed: denied\\x1b
"""


@pytest.fixture
def history(tmp_path: Path) -> Iterator[str]:
    """The socket of an admin service with a history of three pulls."""
    folder = tmp_path / "state"
    folder.mkdir()
    append(folder, record())
    shared = {"ended": "2023-11-14T22:14:20.000Z", "pod": "default/db", "joined": True}
    append(folder, record(**shared, pulledSeconds=3.0, bytesPerSecond=8 * 1024**2 / 3))
    unknown = dict.fromkeys(("pod", "digest", "gotBytes", "reusedBytes", "bytesPerSecond"))
    failed = {"ended": "2023-11-14T22:14:50.000Z", "outcome": "failed", "cause": "denied\x1b"}
    times = {"waitedSeconds": 0.0, "pulledSeconds": 1.5, "attempts": 3}
    append(folder, record(image="c/d:2", **failed, **times, **unknown))
    calls = {"sockets": giving({"history": str(folder)})}
    with serving(str(tmp_path / "a.sock"), calls) as path:
        yield path


def shown(path: str, *words: str) -> Run:
    words = ("pull-limiter", "history", *words, "--admin-socket", path)
    return Run(*words, wall_clock=lambda: NOW_S)


def test_the_history(history: str) -> None:
    run = shown(history)
    assert (run.code, run.stderr) == (0, "")
    assert run.stdout == HISTORY


@pytest.mark.parametrize(
    ("words", "images"),
    [
        (["--since", "1m"], ["a/b:1", "c/d:2"]),
        (["--since", "5s"], []),
        (["--failed"], ["c/d:2"]),
    ],
)
def test_a_part_of_the_history(history: str, words: list[str], images: list[str]) -> None:
    document = json.loads(shown(history, *words, "-o", "json").stdout)
    assert [pull["image"] for pull in document["pulls"]] == images
    assert document == yaml.safe_load(shown(history, *words, "-o", "yaml").stdout)


def test_no_pulls_at_all(history: str) -> None:
    assert shown(history, "--since", "1s").stdout == "no pulls\n"


def test_a_history_that_cannot_be_read(tmp_path: Path) -> None:
    answers = {"a": str(tmp_path / "a"), "b": ""}
    said = {}
    for name, folder in answers.items():
        with serving(str(tmp_path / name), {"sockets": giving({"history": folder})}) as path:
            run = shown(path)
        assert (run.code, run.stdout) == (1, "")
        said[name] = run.stderr
    assert said["a"].startswith("pycrictl: cannot read the history in ")
    assert said["b"].startswith("pycrictl: the proxy keeps no history\nhint: ")
    assert "--state-dir" in said["b"]
