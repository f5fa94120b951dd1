"""A command on several hosts: one table, one document, one list, lines behind their host."""

from __future__ import annotations

import itertools
import json
import os
import re
import select
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pycrictl import __version__
from pycrictl._proto import cri_pb2
from pycrictl.hosts.session import MARK
from tests.fakecri import FakeServer
from tests.fakecri.server import serve
from tests.hosts.answers import containers, images
from tests.hosts.shell import Shell
from tests.hosts.sshd import Host, Hosts
from tests.support.findings import node
from tests.waiting import WAIT_S, wait_until

VERSION = cri_pb2.VersionResponse(
    version="1", runtime_name="r", runtime_version="2", runtime_api_version="v1"
)
MOST_BYTES = 60 * 1024 * 1024

_HOSTILE = """\
#!/usr/bin/python3 -IS
import os, sys
if sys.argv[1:] == ["--version"]:
    print("pycrictl version {version}")
    sys.exit()
start = bytes.fromhex(sys.argv[2]).split(bytes(1))
word = b"".join(line[8:] for line in start if line.startswith(b"records="))
def write(data):
    while data:
        data = data[os.write(1, data):]
def record(text):
    write(word + text + b"\\n")
for output in (1, 2):
    os.write(output, {mark!r})
{body}
"""


@pytest.fixture
def both(machines: Hosts, fake: FakeServer) -> Hosts:
    fake.offer("ListContainers", containers("web", "db9", "db10"))
    return machines


def hostile(hosts: Hosts, name: str, body: str) -> Host:
    """Add a host whose program, of the right version, answers as it likes."""
    folder = hosts.folder / f"{name}-bin"
    folder.mkdir()
    (folder / "pycrictl").write_text(_HOSTILE.format(version=__version__, mark=MARK, body=body))
    (folder / "pycrictl").chmod(0o755)
    return hosts.add(name, variables={"PATH": f"{folder}:{os.environ['PATH']}"})


def rows(text: str) -> list[list[str]]:
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]


def test_tables_are_one_table_with_the_node_first(both: Hosts) -> None:
    done = both.run("-H", "n1,n3", "-H", "n2", "ps")
    (header, *table) = rows(done.stdout)
    assert header[:2] == ["NODE", "CONTAINER"]
    assert [row[0] for row in table] == ["n1"] * 3 + ["n3"] * 3 + ["n2"] * 3
    assert (done.stderr, done.returncode) == ("", 0)


def test_rows_of_all_hosts_are_sorted_together(both: Hosts) -> None:
    done = both.run("-H", "n1,n2", "ps", "-o", "custom-columns=N:.metadata.name", "--sort-by=-name")
    names = ["web", "web", "db10", "db10", "db9", "db9"]
    assert [row[1] for row in rows(done.stdout)] == ["N", *names]


def test_documents_are_one_object_by_host(both: Hosts) -> None:
    done = both.run("-H", "n[1-2]", "ps", "-o", "json")
    documents = json.loads(done.stdout)
    assert list(documents) == ["n1", "n2"]
    names = [container["metadata"]["name"] for container in documents["n2"]["containers"]]
    assert names == ["web", "db9", "db10"]
    done = both.run("-H", "n[1-2]", "ps", "-o", "yaml")
    assert done.stdout.startswith("n1:\n  containers:\n")


def test_other_output_is_lines_behind_their_host(both: Hosts, fake: FakeServer) -> None:
    fake.offer("Version", VERSION)
    done = both.run("-H", "n1,n2", "ps", "-o", "jsonpath={.containers[*].metadata.name}")
    assert sorted(done.stdout.splitlines()) == ["n1 | web db9 db10", "n2 | web db9 db10"]
    done = both.run("-H", "n1,n2", "version")
    assert [row[:3] for row in rows(done.stdout)] == [
        ["NODE", "VERSION", "RUNTIME NAME"], ["n1", "1", "r"], ["n2", "1", "r"]
    ]  # fmt: skip


def test_sizes_of_file_systems_are_one_table(both: Hosts, fake: FakeServer) -> None:
    usage = cri_pb2.FilesystemUsage(fs_id={"mountpoint": "/var"}, used_bytes={"value": 1000})
    fake.offer("ImageFsInfo", cri_pb2.ImageFsInfoResponse(image_filesystems=[usage]))
    done = both.run("-H", "n1,n2", "imagefsinfo", "-o", "table")
    assert rows(done.stdout) == [
        ["NODE", "FILESYSTEM", "TIMESTAMP", "DISK", "INODES", "MOUNTPOINT"],
        ["n1", "Image Filesystem", "0", "1kB", "0", "/var"],
        ["n2", "Image Filesystem", "0", "1kB", "0", "/var"],
    ]


def test_a_failure_on_one_host_does_not_stop_the_others(both: Hosts) -> None:
    both.hosts["n2"].serve("/nonexistent")
    done = both.run("-H", "n1,n2,nowhere", "ps", "-q", "--name=web")
    assert done.stdout == f"n1 {'1' * 64}\n"
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert any(re.match(r"n2 +\| pycrictl: cannot reach the runtime", line) for line in lines)
    assert any(line.startswith("pycrictl: nowhere: ssh: Could not resolve") for line in lines)
    assert lines[-1] == ("pycrictl: failed on 2 of 3 hosts: n2 (status 1), nowhere (not reached)")


def test_a_host_that_does_not_answer_is_given_up(both: Hosts) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        both.run("-H", "n1", "ps")  # has no time limit, and its connection is kept
        done = both.run("--connect-timeout=1s", "-H", f"n1,{host}", "ps", "-q", "--name=web")
    assert done.stdout == f"n1 {'1' * 64}\n"
    assert f"pycrictl: {host}: " in done.stderr
    assert done.returncode == 1


def test_images_tell_where_they_are_missing(both: Hosts, fake: FakeServer) -> None:
    fake.offer("ListImages", images("a:1", "b:2"))
    fake.offer("ListContainers", containers())
    with serve() as other:
        other.offer("ListImages", images("a:1"))
        other.offer("ListContainers", containers())
        both.hosts["n2"].serve(other.path)
        done = both.run("-H", "n1,n2,n3", "images", "-o", "wide")
    header, *table = rows(done.stdout.partition("\n\n")[0])
    assert header[-1] == "MISSING ON"
    missing = {(row[0], row[1]): row[-1] for row in table if len(row) == len(header)}
    assert missing[("n1", "b")] == "n2"
    assert missing[("n1", "a")] == "-"


@pytest.fixture
def troubled(fresh: Hosts) -> Iterator[Hosts]:
    """Hosts ``a1``, which only lacks an image, and ``a2``, with a pod that has crashed."""
    with serve() as first, serve() as second:
        node(first, {"a/ok": None})
        node(second, {"b/ok": None, "b/bad": 3})
        info = {"config": json.dumps({"sandboxImage": "reg.example/pause:3"})}
        first.offer("Status", cri_pb2.StatusResponse(info=info))
        first.offer("ImageStatus", cri_pb2.ImageStatusResponse())
        network = cri_pb2.RuntimeCondition(type="NetworkReady", message="no plugin")
        second.offer("Status", cri_pb2.StatusResponse(status={"conditions": [network]}))
        for fake in (first, second):
            fake.offer("Version", VERSION)
        fresh.add("a1").serve(first.path)
        fresh.add("a2").serve(second.path)
        yield fresh


def test_diagnoses_are_one_list_with_the_most_severe_first(troubled: Hosts) -> None:
    (troubled.folder / "node").mkdir()  # without files, as this machine may have problems, too
    words = ("--host-root", str(troubled.folder / "node"), "-H", "a1,a2")
    done = troubled.run(*words, "why", "--no-kube")
    lines = [line for line in done.stdout.splitlines() if not line.startswith("unavailable: ")]
    assert [line[:30] for line in lines] == [
        "a2: b/bad is not running: cont", "a1: the image of every pod san"
    ]  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "")
    done = troubled.run(*words, "doctor")
    lines = [line for line in done.stdout.splitlines() if line[:7] in ("SERIOUS", "WARNING")]
    assert lines[0].split()[:2] == ["SERIOUS", "a2:"]
    assert any(line.startswith("WARNING      a1: the image of every pod") for line in lines)
    assert [line[:7] for line in lines] == sorted(line[:7] for line in lines)
    assert done.returncode == 1


def test_top_shows_hosts_that_are_lost_and_come_back(troubled: Hosts) -> None:
    with Shell(troubled.environ, troubled.words("-H", "a1,a2")) as shell:
        shell.type("$CLIENT top --no-kube --interval 0.2\n")
        shell.expect(r"(?s)PODS 3 +1 sick +2 running.*! a2 b/bad .*a1 a/ok .*a2 b/ok ")
        troubled.hosts["a1"].crash()
        shell.expect(r"(?s)2 sick.*! a1 .*no connection")
        troubled.hosts["a1"].start()
        shell.seen = b""
        shell.expect(r"PODS 3 +1 sick +2 running")
        shell.type("\x03")
        shell.expect(r"\$ $")


@pytest.mark.parametrize(
    "line", ["exec -it web sh", "attach web", "debug web", "save x", "ps -w", "ps -aw"]
)
def test_what_needs_one_host_says_so(both: Hosts, line: str) -> None:
    done = both.run("-H", "n1,n2", *line.split())
    assert done.returncode == 1
    assert done.stderr.splitlines()[0].endswith("takes only one host")


@pytest.mark.parametrize("words", [["logs", "web"], ["logs", "-t", "web"], ["logs", "-f", "web"]])
def test_lines_of_logs_are_ordered_by_their_times(fresh: Hosts, words: list[str]) -> None:
    """As far as those that are followed come in time."""
    for name, seconds in (("h", (1, 4, 5)), ("h2", (2, 3, 6))):
        lines = [f"2026-01-01T00:00:0{second}.5Z line {second}\n" for second in seconds]
        hostile(fresh, name, "\n".join(f"write({line.encode()!r})" for line in lines))
    done = fresh.run("-H", "h,h2", *words)
    shown = [re.sub("2026-01-01T00:00:0..5Z ", "", line) for line in done.stdout.splitlines()]
    assert (shown == done.stdout.splitlines()) == ("-t" not in words)
    wanted = [f"{'h2' if n in (2, 3, 6) else 'h '} | line {n}" for n in range(1, 7)]
    assert (sorted(shown) if "-f" in words else shown) == (
        sorted(wanted) if "-f" in words else wanted
    )


def test_hostile_text_is_escaped(fresh: Hosts) -> None:
    table = {
        "header": ["A\x1b[2J"], "rows": [["\x1b]0;x\x07\nn9  forged"]], "min_width": 0,
        "whole": [], "optional": [], "order": [],
    }  # fmt: skip
    record = json.dumps({"kind": "table", "content": table})
    body = f"write(b'\\x1b[31mred\\x1b[0m\\tx\\r\\n\\xff\\n')\nrecord({record.encode()!r})\n"
    hostile(fresh, "h", body)
    hostile(fresh, "h2", body)
    done = fresh.run("-H", "h,h2", "ps")
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", done.stdout + done.stderr)
    assert r"h  | \x1b[31mred\x1b[0m" in done.stdout
    assert r"\x1b]0;x\x07\nn9  forged" in done.stdout


@pytest.mark.parametrize(
    "body",
    [
        'record(b\'{"kind": "table", "content": 7}\')',
        "record(b'[' * 100000)",
        'record(b\'{"kind": "new", "content": 7}\')',
    ],
)
def test_an_answer_that_is_none_fails_its_host_only(
    fresh: Hosts, fake: FakeServer, body: str
) -> None:
    fake.offer("ListContainers", containers("web"))
    fresh.add("good").serve(fake.path)
    hostile(fresh, "bad", body)
    done = fresh.run("-H", "good,bad", "ps", "-q")
    assert done.stdout == f"good {'1' * 64}\n", done.stderr
    assert "pycrictl: bad: " in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 1


def test_a_client_whose_output_is_not_read_can_be_ended(fresh: Hosts) -> None:
    hostile(fresh, "h", "while True: write(b'x' * 65535 + b'\\n')")
    hostile(fresh, "h2", "")
    reader, writer = os.pipe()
    words = fresh.words("-H", "h,h2", "ps")
    with subprocess.Popen(words, stdout=writer, env=fresh.environ) as client:
        wait_until(lambda: not select.select([], [writer], [], 0)[1])  # the pipe is full
        client.send_signal(signal.SIGTERM)
        assert client.wait(WAIT_S) == 128 + signal.SIGTERM
    wait_until(lambda: not fresh.hosts["h"].processes())
    os.close(reader)
    os.close(writer)


def measured(hosts: Hosts, *words: str) -> tuple[subprocess.CompletedProcess[bytes], int]:
    """Run a client; return its result and the most memory that it had."""
    peak = hosts.folder / "peak"
    done = subprocess.run(
        ["/usr/bin/time", "-q", "-f", "%M", "-o", peak, *hosts.words(*words)],
        capture_output=True,
        check=False,
        env=hosts.environ,
    )
    return done, int(peak.read_text()) << 10


@pytest.mark.parametrize("kind", ["lines", "logs", "one-line", "record"])
def test_endless_text_takes_bounded_memory(fresh: Hosts, kind: str) -> None:
    """Text passes through; data is refused above a limit."""
    line = "2026-01-01T00:00:01Z " + "x" * 100_000 + "\n"
    piece, count, start = {
        "lines": ("b'x' * 65535 + b'\\n'", 4000, ""),
        "logs": (f"{line.encode()!r}", 800, ""),
        "one-line": ("b'x' * 65536", 4000, ""),
        "record": ("b'x' * 65536", 800, "write(word); "),
    }[kind]
    hostile(fresh, "h", f"{start}\nfor _ in range({count}): write({piece})")
    hostile(fresh, "h2", "")
    done, peak_bytes = measured(fresh, "-H", "h,h2", *(["logs", "x"] if kind == "logs" else ["ps"]))
    assert done.returncode == (kind == "record")
    assert kind == "record" or len(done.stdout) >= count * 65536
    assert peak_bytes < MOST_BYTES + (40 << 20) * (kind == "record")


def test_twenty_hosts(fresh: Hosts, fake: FakeServer) -> None:
    fake.offer("ListContainers", containers("web"))
    for number in range(1, 21):
        fresh.add(f"m{number:02}").serve(fake.path)
    groups = Path(fresh.environ["HOME"], ".config/pycrictl/hosts")
    groups.mkdir(parents=True)
    (groups / "all").write_text("m[01-20]\n")
    for _ in range(2):
        done, peak_bytes = measured(fresh, "-H", "@all", "ps", "-q")
        assert done.stdout.decode() == "".join(f"m{n:02} {'1' * 64}\n" for n in range(1, 21))
        assert done.returncode == 0
        assert peak_bytes < MOST_BYTES


def test_so_many_hosts_run_it_at_once(fresh: Hosts) -> None:
    """Sixteen, or as many as the option says: so many wait for each other, and no more start."""
    log, most = fresh.folder / "log", fresh.folder / "most"
    for number in range(1, 21):
        hostile(
            fresh,
            f"m{number:02}",
            f"""
import time
log = os.open({str(log)!r}, os.O_RDWR | os.O_APPEND)
os.write(log, b"+")
while os.pread(log, 99, 0).count(b"+") < int(open({str(most)!r}).read()):
    time.sleep(0.02)
os.write(log, b"-")
""",
        )
    for words, number in ([], 16), (["--max-parallel-hosts=2"], 2):
        log.write_text("")
        most.write_text(str(number))
        assert fresh.run(*words, "-H", "m[01-20]", "ps").returncode == 0
        steps = [1 if step == "+" else -1 for step in log.read_text()]
        assert steps.count(1) == 20
        assert max(itertools.accumulate(steps)) == number
