"""Hosts with a real containerd: terminals of containers, copies, pulls, the screen of ``top``."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.node.lab import Lab
from tests.hosts.shell import Shell
from tests.hosts.sshd import Hosts
from tests.waiting import WAIT_S


@pytest.fixture
def nodes(shared: Hosts, lab: Lab) -> Iterator[Hosts]:
    for host in shared.hosts.values():
        host.serve(lab.node.endpoint.removeprefix("unix://"))
    yield shared
    for host in shared.hosts.values():
        host.runtime.unlink()


@pytest.fixture
def container(lab: Lab) -> str:
    return lab.container(lab.node.kubelet.run_pod("web"))


def test_streams_and_status_of_exec(nodes: Hosts, container: str) -> None:
    done = nodes.run("-H", "n1", "exec", container, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 7)
    text = "line\n" * 100_000  # more than may be on its way at once
    done = nodes.run("-H", "n1", "exec", "-i", container, "cat", stdin=text)
    assert (done.stdout == text, done.stderr, done.returncode) == (True, "", 0)


def test_exec_runs_on_all_hosts_at_once(nodes: Hosts, container: str) -> None:
    """Each of the three waits for the others."""
    meet = "mkdir -p /tmp/met; touch /tmp/met/$$; while [ $(ls /tmp/met | wc -l) -lt 3 ]"
    script = f"{meet}; do sleep 0.1; done; echo all; exit 3"
    done = nodes.run("-H", "n[1-3]", "exec", container, "sh", "-c", script)
    assert sorted(done.stdout.splitlines()) == ["n1 | all", "n2 | all", "n3 | all"]
    assert done.stderr.endswith(
        "failed on 3 of 3 hosts: n1 (status 3), n2 (status 3), n3 (status 3)\n"
    )
    assert done.returncode == 1


def test_the_terminal_of_exec(nodes: Hosts, container: str) -> None:
    with Shell(nodes.environ, nodes.words("-H", "n1")) as shell:
        shell.type(f"$CLIENT exec -it {container} sh\n")
        shell.expect(r"/ # $")
        shell.resize(31, 77)
        shell.type("while [ \"$(stty size)\" != '31 77' ]; do :; done; echo re''sized\n")
        shell.expect("resized")
        shell.type("echo be''gun; cat\n")  # the shell's editor takes keys that come earlier
        shell.expect("begun")
        shell.type("twice\n")
        shell.expect(r"twice\n+twice\n")  # by the terminal, and by cat, which runs therefore
        shell.type("\x03")
        shell.expect(r"/ # $")
        shell.type("exit 5\n")
        shell.expect(r"\n\$ $")
        assert shell.run("(exit $?)") == "status 5\n"


def test_copies_follow_the_rules_of_a_local_copy(
    nodes: Hosts, container: str, tmp_path: Path
) -> None:
    (tmp_path / "in/deep").mkdir(parents=True)
    (tmp_path / "in/deep/file").write_bytes(bytes(range(256)) * 4000)
    (tmp_path / "one").write_text("1")

    def listing() -> list[str]:
        done = nodes.run("-H", "n1", "exec", container, "find", "/srv", "-type", "f")
        return sorted(done.stdout.split())

    def copied(*words: str) -> None:
        done = nodes.run("-H", "n1", "cp", *words)
        assert (done.stderr[:7], done.returncode) == ("copied ", 0), words

    nodes.run("-H", "n1", "exec", container, "mkdir", "/srv")
    copied(f"{tmp_path}/one", f"{container}:/srv")
    copied(f"{tmp_path}/one", f"{container}:/srv/two")
    copied(f"{tmp_path}/in", f"{container}:/srv/new")
    copied(f"{tmp_path}/in/.", f"{container}:/srv")
    copied(f"{tmp_path}/one", f"{tmp_path}/in", f"{container}:/srv/new")
    assert listing() == [
        "/srv/deep/file", "/srv/new/deep/file", "/srv/new/in/deep/file", "/srv/new/one",
        "/srv/one", "/srv/two",
    ]  # fmt: skip
    (tmp_path / "out").mkdir()
    archive = nodes.run("-H", "n1", "cp", f"{container}:/srv/one", "-").stdout
    done = nodes.run("-H", "n1", "cp", "-", f"{container}:/tmp", stdin=archive)
    assert done.returncode == 0, done.stderr
    assert nodes.run("-H", "n1", "exec", container, "cat", "/tmp/one").stdout == "1"
    copied(f"{container}:/srv/new", f"{tmp_path}/out")
    copied(f"{container}:/srv/two", f"{tmp_path}/out/three")
    copied(f"{container}:/srv/t*", f"{tmp_path}/out")
    names = sorted(str(path.relative_to(tmp_path)) for path in (tmp_path / "out").rglob("*"))
    assert [name for name in names if Path(tmp_path, name).is_file()] == [
        "out/new/deep/file", "out/new/in/deep/file", "out/new/one", "out/three", "out/two",
    ]  # fmt: skip
    assert (tmp_path / "out/new/deep/file").read_bytes() == bytes(range(256)) * 4000


def test_a_copy_that_fails_says_why_and_leaves_nothing(
    nodes: Hosts, container: str, tmp_path: Path
) -> None:
    (tmp_path / "one").write_text("1")
    for words, error in (
        ([f"{tmp_path}/none", f"{container}:/tmp"], "no such file or directory"),
        ([f"{tmp_path}/one", f"{container}:/no/such/"], "there is no directory"),
        ([f"{tmp_path}/one", "nothing:/tmp"], 'no container "nothing"'),
        ([f"{container}:/none", f"{tmp_path}/x"], "no such file or directory"),
    ):
        done = nodes.run("-H", "n1", "cp", *words)
        assert (done.stdout, done.returncode) == ("", 1)
        assert error in done.stderr.splitlines()[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one"]


def test_a_copy_to_several_hosts_names_those_that_fail(
    nodes: Hosts, container: str, tmp_path: Path
) -> None:
    (tmp_path / "one").write_text("1")
    nodes.hosts["n2"].serve("/nonexistent")
    done = nodes.run("-H", "n1,n2", "cp", f"{tmp_path}/one", f"{container}:/tmp/x")
    assert done.returncode == 1
    assert done.stderr.startswith("pycrictl: n2: cannot reach the runtime")
    assert nodes.run("-H", "n1", "exec", container, "cat", "/tmp/x").stdout == "1"
    done = nodes.run("-H", "n1,n2", "cp", f"{container}:/tmp/x", str(tmp_path))
    assert done.stderr == "pycrictl: cp needs one host to copy from\n"


def test_pulls_on_several_hosts_are_one_display(nodes: Hosts, lab: Lab) -> None:
    """The hosts share a containerd, so a pull is held up until each of them has begun one."""
    image = lab.push(lab.image("many:1", 3_000_000, 2_000_000))
    lab.registry.limit(20_000)
    words = nodes.words("-H", "n1,n2", "pull", "--progress=json", image)
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=nodes.environ
    ) as client:
        assert client.stderr is not None
        hosts: set[str] = set()
        while hosts != {"n1", "n2"}:
            progress = json.loads(client.stderr.readline())
            assert "progress" in progress
            hosts.add(progress["host"])
        lab.registry.limit(None)
        stdout, _ = client.communicate(timeout=WAIT_S)
    assert [line.split(" | ")[0] for line in sorted(stdout.splitlines())] == ["n1", "n2"]
    nodes.run("-H", "n1", "rmi", image)
    lab.registry.limit(1_000_000)  # what is pulled at once has no progress
    done = nodes.run("-H", "n1,n2,nowhere", "pull", "--progress=plain", image)
    assert re.search(r"^n[12] done  [\d.]+ MiB  in [\d.]+ s$", done.stderr, re.MULTILINE)
    assert re.search(r"^nowhere failed: ssh: Could not resolve", done.stderr, re.MULTILINE)
    nodes.run("-H", "n1", "rmi", image)
    lab.registry.limit(20_000)
    with Shell(nodes.environ, nodes.words("-H", "n1,n2")) as shell:
        shell.type(f"$CLIENT pull {image}\n")
        shell.expect(r"(?s)n1 +\d+%\|.*n2 +\d+%\|.*Total +\d+%\|.*0/2 hosts")
        lab.registry.limit(None)
        shell.expect(r"n2 +done  .*\n(.*\n)*\$ $")


def test_images_travel_from_host_to_host(nodes: Hosts, lab: Lab, tmp_path: Path) -> None:
    """Hosts that share a containerd wait for each other, so each reads at its own speed."""
    image = lab.push(lab.image("travels:1", 40_000_000))
    assert nodes.run("-H", "n1", "pull", image).returncode == 0
    archive = tmp_path / "image.tar"
    done = nodes.run("-H", "n1", "save", "-o", str(archive), image)
    assert (done.stdout, done.returncode) == ("", 0), done.stderr
    assert archive.stat().st_size > 40_000_000
    save, load = (
        " ".join(nodes.words("-H", *words)) for words in (("n1", "save"), ("n2,n3", "load"))
    )
    peak = "/usr/bin/time -f %M"
    done = subprocess.run(
        ["sh", "-c", f"{peak} {save} {image} | {peak} {load}"],
        capture_output=True,
        text=True,
        check=False,
        env=nodes.environ,
    )
    assert done.returncode == 0, done.stderr
    assert [line.split(" | ")[0] for line in sorted(done.stdout.splitlines())] == ["n2", "n3"]
    peaks = [int(line) for line in done.stderr.splitlines() if line.isdigit()]
    assert len(peaks) == 2
    assert max(peaks) < 60 * 1024
