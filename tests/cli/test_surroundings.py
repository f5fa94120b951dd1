"""Bad inheritance from the parent process: closed streams, few descriptors, removed directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pycrictl import __version__
from pycrictl._proto import cri_pb2
from tests.cli.run import PROGRAM, Run
from tests.cli.streaming_server import Played, playing
from tests.copy.trees import stages_in
from tests.fakecri import FakeServer
from tests.fakecri.answers import VERSION
from tests.proxy.copier import pretended
from tests.support.containers import ID

CLOSED = "pycrictl: cannot write to standard output: bad file descriptor\n"
FULL = "pycrictl: cannot write to standard output: no space left on device\n"


def run(script: str, *words: str, **variables: str) -> tuple[int, str, str]:
    """Run a shell script in which ``"$@"`` is the program."""
    done = subprocess.run(
        ["sh", "-c", script, "sh", *PROGRAM, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **variables},
        errors="surrogateescape",
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("words", ["--version", "ps --help", "ps"])
def test_results_that_cannot_be_written_are_an_error(fake: FakeServer, words: str) -> None:
    fake.offer("ListContainers", cri_pb2.ListContainersResponse())
    for redirection, said in ((">&-", CLOSED), ("<&- >&-", CLOSED), (">/dev/full", FULL)):
        command = ("-r", fake.endpoint, *words.split())
        assert run(f'exec "$@" {redirection}', *command) == (1, "", said)
        assert run(f'exec "$@" {redirection} 2>&-', *command) == (1, "", "")
    assert run('exec "$@" <&- 2>&-', "--version")[0] == 0


def test_no_connection_takes_the_place_of_a_closed_stream(fake: FakeServer) -> None:
    with playing(fake, Played(stdout=b"out\n", stderr=b"err\n", is_cat=True)):
        words = ("-r", fake.endpoint, "exec", "-i", "a", "cat")
        assert run('exec "$@" <&-', *words) == (0, "out\n", "err\n")
        assert run('exec "$@" 2>&-', *words) == (0, "out\n", "")
        assert run('exec "$@" >&-', *words) == (1, "", CLOSED)


@pytest.mark.parametrize("limit", [5, 7, 9, 12, 16, 20])
@pytest.mark.root
def test_too_few_descriptors_are_one_line(fake: FakeServer, tmp_path: Path, limit: int) -> None:
    with pretended(fake, tmp_path / "root"):
        words = ("-r", fake.endpoint, "cp", "--method", "node", str(tmp_path / "root/to"))
        code, _, stderr = run(f'ulimit -n {limit}; exec "$@"', *words, f"{ID}:/new")
        assert (code, stages_in(tmp_path / "root")) == (1, [])
        assert stderr.startswith("pycrictl: ")
        assert "descriptors" in stderr or "too many open files" in stderr
        assert len([line for line in stderr.splitlines() if not line.startswith("hint: ")]) == 1


@pytest.mark.root
def test_a_directory_that_was_removed(fake: FakeServer, tmp_path: Path) -> None:
    gone = 'mkdir gone; cd gone; rmdir ../gone; exec "$@"'
    code, stdout, _ = run(f"cd {tmp_path}; {gone}", "-r", fake.endpoint, "--version")
    assert (code, stdout) == (0, f"pycrictl version {__version__}\n")
    with pretended(fake, tmp_path / "root"):
        (tmp_path / "root/f").write_text("")
        words = ("-r", fake.endpoint, "cp", "--method", "node", f"{ID}:/f")
        for name in ("y", "."):
            said = 'pycrictl: the directory "." has been removed\n'
            assert run(f"cd {tmp_path}; {gone}", *words, name) == (1, "", said)
        assert run(f"cd {tmp_path}; {gone}", *words, str(tmp_path / "y"))[0] == 0


@pytest.mark.parametrize(
    "variables",
    [
        *({"LC_ALL": "C"}, {"LC_ALL": "xx_YY.junk"}, {"TERM": "dumb"}, {"TERM": ""}),
        *({"COLUMNS": "0", "LINES": "-5"}, {"COLUMNS": "9" * 5000}, {"TZ": "x/../\udcff"}),
        *({"HOME": "/proc/1/nothing"}, {"PYTHONIOENCODING": "ascii"}, {"TMPDIR": "/nothing"}),
    ],
    ids=lambda variables: ",".join(variables),
)
def test_odd_variables_change_nothing(fake: FakeServer, variables: dict[str, str]) -> None:
    labels = {"a": "é\u202e"}
    fake.offer(
        "ListPodSandbox",
        cri_pb2.ListPodSandboxResponse(items=[cri_pb2.PodSandbox(id="p", labels=labels)]),
    )
    code, stdout, stderr = run('exec "$@"', "-r", fake.endpoint, "pods", "-v", **variables)
    assert (code, stderr) == (0, "")
    assert "a -> " in stdout


NO_FILE = {"CRI_CONFIG_FILE": "/nonexistent"}
"""Then a file beside the program will do."""


def test_a_file_in_the_working_directory_is_not_beside_the_program(
    fake: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "crictl.yaml").write_text(f"runtime-endpoint: {fake.endpoint}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pycrictl"])
    done = Run("pods", environ=NO_FILE)
    said = 'pycrictl: config file "/nonexistent" does not exist\n'
    assert (done.code, done.stdout, done.stderr, fake.calls) == (1, "", said, [])


def test_the_file_beside_the_standalone_program(
    fake: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "crictl.yaml").write_text(f"runtime-endpoint: {fake.endpoint}\n")
    fake.offer("ListPodSandbox", None)
    monkeypatch.setattr(sys, "argv", ["pycrictl"])
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "pycrictl"))
    done = Run("pods", "-q", environ=NO_FILE)
    assert (done.code, done.stdout) == (0, "")
    assert fake.calls


def test_options_of_crictl_without_effect(fake: FakeServer, tmp_path: Path) -> None:
    fake.offer("Version", VERSION)
    profile = tmp_path / "cpu"
    run = Run("-r", fake.endpoint, "--enable-tracing", "--profile-cpu", str(profile), "version")
    assert (run.code, run.stdout.splitlines()[0]) == (0, "Version:  0.1.0")
    assert "have no effect" in run.stderr
    assert not profile.exists()
