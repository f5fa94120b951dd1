"""Recordings replayed under the name ``crictl``: output, exit status and kind of messages."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.base.config import DEFAULT_PATH, KEYS
from pycrictl.cli.command_table import COMMANDS
from tests.captures import Capture, documents, everything
from tests.captures import capture as recording
from tests.captures.calls import OTHER_CALLS, calls_of, expected, made, recorded_calls
from tests.captures.deviations import DEVIATIONS, is_page, kind_of_messages
from tests.captures.fixtures import utc
from tests.cli.run import PROGRAM, Run
from tests.cli.streaming_server import Played, playing
from tests.fakecri import FakeServer, Status, hang
from tests.show.screen import Terminal
from tests.support import log_replays, replays
from tests.waiting import wait_until
from tools.manual import prose, roff

__all__ = ["utc"]

Replay = Callable[[FakeServer, Capture, Path], Run]


@pytest.fixture(autouse=True)
def called_crictl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as crictl, with a configuration file, because crictl reports a missing one."""
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/crictl"])
    path = tmp_path / "empty.yaml"
    path.touch()
    monkeypatch.setenv("CRI_CONFIG_FILE", str(path))


def run(*words: str) -> Run:
    return Run(*words, environ=os.environ)


def replay_logs(fake: FakeServer, capture: Capture, folder: Path) -> Run:
    timeout = "5s" if capture.name.startswith("l-") else "20s"
    return run("-t", timeout, "-r", fake.endpoint, *log_replays.prepare(fake, capture, folder))


LOGS = [capture for capture in log_replays.CAPTURES if not log_replays.is_interrupted(capture)]

SOURCES: tuple[tuple[Replay, list[Capture]], ...] = (
    (replays.replay_list, replays.LISTS),
    (replays.replay_session, replays.SESSIONS),
    (replays.replay_change, replays.CHANGES),
    (replay_logs, LOGS),
)
REPLAYED = [(replay, capture) for replay, captures in SOURCES for capture in captures]

BY_TARGET = (replays.replay_session, replays.replay_change)
"""Replays in which calls about different targets have no fixed order."""

SCRIPTS = frozenset(
    (
        "endpoint-image-only-bad", "images-filter-since-id",
        "inspect-ambiguous-prefix", "inspecti-idprefix",
    )
)  # fmt: skip
"""Recordings of several command lines, only one of which is replayed."""

OF_PIPE = {"x-logrus-tty": (1, "error")}
"""Exit statuses and kinds of messages of recordings that show only the end of a pipe."""


@pytest.mark.parametrize(
    ("replay", "capture"), REPLAYED, ids=[capture.name for _, capture in REPLAYED]
)
def test_replay(fake: FakeServer, capture: Capture, replay: Replay, tmp_path: Path) -> None:
    done = replay(fake, capture, tmp_path)
    differences = []
    status, told = OF_PIPE.get(capture.name, (capture.rc, capture.told))
    if done.code != status:
        differences.append(f"status {done.code}, recorded {status}")
    if kind_of_messages(done.stderr) != told:
        differences.append(f"messages {done.stderr!r}, recorded {told!r}")
    if capture.is_help:
        if not is_page(done.stdout):
            differences.append(f"no page of help: {done.stdout!r}")
    elif capture.stdout is not None:
        try:
            assert_same_output(done.stdout, capture)
        except AssertionError as difference:
            differences.append(f"output {difference}")
    assert bool(differences) == (capture.name in DEVIATIONS), differences
    if capture.name not in SCRIPTS:
        by_target = replay in BY_TARGET
        calls = made(calls_of(fake), by_target=by_target)
        same = calls == expected(recorded_calls(capture), by_target=by_target)
        assert same != (capture.name in OTHER_CALLS), calls


def assert_same_output(stdout: str, capture: Capture) -> None:
    if capture.output.startswith("\x1b[2J\x1b[H"):
        assert stdout.startswith("\x1b[2J\x1b[H")
        stdout = stdout.removeprefix("\x1b[2J\x1b[H")
    if replays.command_of(capture):
        replays.assert_same_text(stdout, capture)
    else:  # lines of several containers have no fixed order
        recorded = capture.output.replace("\n--- (no newline at the end)", "")
        assert sorted(stdout.splitlines()) == sorted(recorded.splitlines())


def test_the_tables_hold_only_recordings() -> None:
    of_logs = (log_replays.DIFFERENT, log_replays.SCENE)
    of_others = (replays.ELSEWHERE, replays.SHELL, replays.PLAYED)
    names = {capture.name for capture in everything()}
    for table in (DEVIATIONS, OTHER_CALLS, *of_logs, *of_others, replays.SIGNALLED):
        assert table.keys() <= names
    assert len(DEVIATIONS) / len(names) < 0.05
    assert len(REPLAYED) > 240


def test_the_manual_has_the_reason_of_each_deviation() -> None:
    section = prose.section("pycrictl-compat.md", "UNDER THE NAME CRICTL")
    (part,) = [part for part in section.parts if part.title == "What stays different"]
    (points,) = [block for block in part.blocks if isinstance(block, roff.Points)]
    assert {point.text for point in points.items} >= set(DEVIATIONS.values())


@pytest.mark.parametrize(
    "name",
    ["crictl", "crictl.pyz", "/usr/local/bin/crictl", "crictl-1.36", "crictl-v1.36.0", "crictl1"],
)
def test_the_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name])
    done = run("rm", "")
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr.startswith("crictl: an empty container name was given\n")


@pytest.mark.parametrize(
    "name", ["pycrictl", "critest", "mycrictl", "crictl-wrapper", "crictl-", "crictlx", ""]
)
def test_other_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name])
    assert run("rm").stderr == "pycrictl: no container is named\n"


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"], ["h"], []])
def test_the_help_of_the_program(words: list[str]) -> None:
    done = run(*words)
    assert done.code == 0
    page = done.stdout
    assert page.startswith("NAME:\n   crictl - client for CRI\n\nUSAGE:\n   crictl ")
    assert "\nOPTIONS:\n  -c, --config FILE" in page
    assert "pycrictl" not in page


@pytest.mark.parametrize("command", [entry.name for entry in COMMANDS])
def test_the_help_of_a_command(command: str) -> None:
    done = run(command, "--help")
    assert done.code == 0
    page = done.stdout
    assert page.startswith(f"NAME:\n   crictl {command} - ")
    assert f"\n\nUSAGE:\n   crictl {command} [OPTIONS]" in page


@pytest.mark.parametrize(
    ("stdout", "stderr", "written"),
    [(b"out\n", b"err\n", "out\n\nerr\n\n"), (b"out", b"", "out\n\n"), (b"", b"", "\n\n")],
)
def test_a_whole_output_has_two_newlines_more(
    fake: FakeServer, stdout: bytes, stderr: bytes, written: str
) -> None:
    fake.prepare("ExecSync", cri_pb2.ExecSyncResponse(stdout=stdout, stderr=stderr))
    done = run("-r", fake.endpoint, "exec", "-s", "c", "true")
    assert (done.code, done.stdout, done.stderr) == (0, written, "")


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "bin" / "crictl"
    path.parent.mkdir()
    path.write_text(f"#!{sys.executable}\nfrom pycrictl.__main__ import run\n\nrun()\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("is_own", [False, True])
@pytest.mark.parametrize(
    ("command", "rpc"), [("stats", "ListContainerStats"), ("statsp", "ListPodSandboxStats")]
)
def test_statistics_clear_the_screen_as_in_crictl_only(
    fake: FakeServer, program: str, command: str, rpc: str, is_own: bool
) -> None:
    fake.prepare(rpc, None, repeat=True)
    words = [*(PROGRAM if is_own else [program]), "-r", fake.endpoint, command, "-s", "0"]
    piped = subprocess.run(words, capture_output=True, check=True, timeout=60).stdout
    with Terminal() as terminal:
        subprocess.run(words, stdout=terminal.stderr, check=True, timeout=60)
        terminal.mark_end()
        terminal.read()
    cleared = [output.startswith(b"\x1b[2J\x1b[H") for output in (piped, terminal.sent)]
    assert cleared == [not is_own] * 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("words", "rpc"),
    [("exec -s c sleep 9", "ExecSync"), ("exec c true", "Exec"), ("version", "Version")],
)
def test_an_interrupted_call_ends_with_1(
    fake: FakeServer, program: str, words: str, rpc: str, number: signal.Signals
) -> None:
    fake.offer(rpc, hang(30))
    process = subprocess.Popen(
        [program, "-r", fake.endpoint, *words.split()], stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: rpc in fake.methods())
    process.send_signal(number)
    _, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr) == (1, "crictl: interrupted\n")


@pytest.mark.parametrize(("words", "rpc"), [("attach -it c", "Attach"), ("exec -it c sh", "Exec")])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_is_killed_before_it_is_up_leaves_the_terminal_as_it_was(
    fake: FakeServer, words: str, rpc: str, number: signal.Signals
) -> None:
    fake.offer(rpc, hang(30))
    screen, terminal = pty.openpty()
    before = termios.tcgetattr(terminal)
    process = subprocess.Popen(
        [*PROGRAM, "-r", fake.endpoint, *words.split()],
        stdin=terminal,
        stdout=terminal,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: rpc in fake.methods())
    process.send_signal(number)
    _, stderr = process.communicate(timeout=30)
    after = termios.tcgetattr(terminal)
    os.close(terminal)
    os.close(screen)
    assert after == before
    assert process.returncode == 128 + number
    assert stderr == ("pycrictl: interrupted\n" if number == signal.SIGINT else "")


@pytest.mark.parametrize(
    ("words", "number"), [("exec -i c cat", signal.SIGINT), ("attach -i c", signal.SIGTERM)]
)
def test_a_stream_passes_over_the_first_signal(
    fake: FakeServer, program: str, words: str, number: signal.Signals
) -> None:
    pipe, ends = subprocess.PIPE, []
    for count in (1, 2):
        with playing(fake, cat := Played(is_cat=True)):
            process = subprocess.Popen(
                [program, "-r", fake.endpoint, *words.split()], stdin=pipe, stdout=pipe, stderr=pipe
            )
            assert process.stdin
            for number_of_bytes in range(1, count + 1):
                # What arrives proves that the stream stands, and that the last signal was handled.
                os.write(process.stdin.fileno(), b"x")
                wait_until(lambda: cat.peers and len(cat.peers[0].stdin) == number_of_bytes)  # noqa: B023
                process.send_signal(number)
            stdout, stderr = process.communicate(b"typed\n" if count == 1 else None, timeout=60)
            ends.append((process.returncode, stdout, stderr))
    assert ends == [(0, b"xtyped\n", b""), (1, b"", b"")]


@pytest.mark.parametrize("words", ["attach -it c", "exec -it c sh"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_with_a_terminal_the_first_signal_ends_a_stream(
    fake: FakeServer, program: str, words: str, number: signal.Signals
) -> None:
    with playing(fake, cat := Played(is_cat=True)):
        screen, terminal = pty.openpty()
        process = subprocess.Popen(
            [program, "-r", fake.endpoint, *words.split()],
            stdin=terminal,
            stdout=terminal,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(terminal)
        wait_until(lambda: not termios.tcgetattr(screen)[3] & termios.ICANON)
        os.write(screen, b"x")
        wait_until(lambda: cat.peers and cat.peers[0].stdin)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
        os.close(screen)
    assert (process.returncode, stderr) == (1, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_background_job(
    fake: FakeServer, tmp_path: Path, program: str, number: signal.Signals
) -> None:
    """Shells without job control start background jobs with SIGINT ignored."""
    log = tmp_path / "0.log"
    log.write_text(log_replays.line("one"))
    fake.offer("ContainerStatus", log_replays.container_status(str(log), lives=True))
    script = f"""
        {program} -r {fake.endpoint} logs -f c > {tmp_path}/out & job=$!
        until grep -qs one {tmp_path}/out; do sleep 0.05; done
        kill -{number.name.removeprefix("SIG")} $job
        wait $job; echo $?
    """
    done = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.parametrize(
    ("name", "words"),
    [("runp-jsonschema", ["runp", "js"]), ("run-jsonschema-both", ["run", "js", "-p", "-c"])],
)
def test_the_schema(name: str, words: list[str]) -> None:
    made, recorded = run(*words).stdout, recording(name).output
    assert [*documents(made)] == [*documents(recorded)]


CONFIG = """\
runtime-endpoint: "foo"
image-endpoint: 'bar' # inline
timeout:    5

# below a blank line
timeout: 6
"""


def test_config_writes_every_key_of_crictl_1_36(tmp_path: Path) -> None:
    path, made = tmp_path / "crictl.yaml", tmp_path / "made.yaml"
    path.write_text(CONFIG)

    def config(*words: str, path: Path = path) -> str:
        done = run("-c", str(path), "config", *words)
        assert done.code == 0
        return done.stdout

    config("--set", "timeout=7,image-endpoint=baz")
    assert path.read_text() == (
        'runtime-endpoint: "foo"\n'
        'image-endpoint: "baz" # inline\n'
        "timeout: 7\n"
        "# below a blank line\n"
        "timeout: 7\n"
        "debug: false\n"
        "pull-image-on-create: false\n"
        "disable-pull-on-run: false\n"
    )
    assert config("--get", "timeout", "surplus") == "7\n"
    assert config("--set", "timeout=8", "surplus") == config("timeout", "7", "surplus") == ""
    assert config("--list", "surplus") == config("--list")
    assert run("-c", str(path), "config", "", "x").stdout.startswith("NAME:\n   crictl config - ")
    assert "max-retries" not in config("--list")
    config("--set", "max-retries=0")
    assert path.read_text().endswith("disable-pull-on-run: false\nmax-retries: 0\n")
    assert config("--list").endswith("max-retries            0\n")
    assert config("--get", "timeout", path=made) == "0\n"
    assert [line.partition(":")[0] for line in made.read_text().splitlines()] == [*KEYS][:-1]
    before = path.read_text()
    assert run("-c", str(path), "config", "timeout").code == 1
    for wrong in ("timeout=1s", "debug=yes", "nosuch=1", "timeout", "debug=true=1"):
        done = run("-c", str(path), "config", "--set", f"timeout=9,{wrong}")
        assert (done.code, done.stdout, path.read_text()) == (1, "", before)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("events", "-o", "ini"), 'don\'t support "ini" format'),
        (("events", "--template", "x"), "template can't be used with"),
        (("events", "-o", "go-template", "--template", "{{"), "failed to parse go-template"),
        (("nosuch",), "No help topic for 'nosuch'"),
        (("inspect", "nosuch"), "hint: 'crictl ps -a' lists the containers of the node"),
        (("pull", "x"), "pulling image: "),
        (("rm", "-a"), "No containers to remove"),
        (("rmp", "-a"), "No pods to remove"),
        (("rmi", "-a"), "No images to remove"),
        (("inspect",), "nothing found per filter"),
    ],
)
def test_what_scripts_look_for(fake: FakeServer, words: tuple[str, ...], message: str) -> None:
    fake.offer("PullImage", Status(grpc.StatusCode.NOT_FOUND, "none"))
    for name in ("ListContainers", "ListPodSandbox", "ListImages"):
        fake.offer(name, None)
    assert message in run("-r", fake.endpoint, *words).stderr


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("ps -q --quiet=false", "q quiet"),
        ("ps --quiet=false -q", "q quiet"),
        ("ps -o json --output yaml", "o output"),
        ("-t 3s --timeout 5s version", "t timeout"),
    ],
)
def test_an_option_by_two_of_its_names(line: str, names: str) -> None:
    done = run(*line.split())
    error = f"Cannot use two forms of the same flag: {names}"
    assert (done.code, done.stderr) == (1, f"crictl: {error}\n")
    assert done.stdout.startswith(f"Incorrect Usage: {error}\n\nNAME:\n")


@pytest.mark.parametrize(
    ("line", "page"),
    [
        ("--help ps", "ps"),
        ("-h create jsonschema", "create"),
        ("help ps extra", "ps"),
        ("create --help jsonschema", "create jsonschema"),
        ("create help js", "create jsonschema"),
        ("create jsonschema help", "create jsonschema"),
        ("create jsonschema extra", "create jsonschema"),
        ("ps --help=false extra", "ps"),
        ("ps extra -h", "ps"),
    ],
)
def test_topics_of_help(line: str, page: str) -> None:
    done = run(*line.split())
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.startswith(f"NAME:\n   crictl {page} - ")


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("ps -h extra", 1),
        ("stop --help extra", 1),
        ("--help extra", 1),
        ("help extra", 3),
        ("ps help extra", 3),
        ("create help extra", 3),
    ],
)
def test_an_unknown_topic_of_help(line: str, status: int) -> None:
    done = run(*line.split())
    assert (done.code, done.stdout) == (status, "")
    assert done.stderr == "crictl: No help topic for 'extra'\n"


@pytest.mark.parametrize(
    ("line", "method", "before"),
    [
        ("start", "StartContainer", ""),
        ("stop", "StopContainer", ""),
        ("stopp", "StopPodSandbox", "Stopped sandbox "),
        ("update --memory 1", "UpdateContainerResources", ""),
    ],
)
def test_each_word_is_a_target(fake: FakeServer, line: str, method: str, before: str) -> None:
    fake.offer("ListContainers", None)
    fake.offer("ListPodSandbox", None)
    fake.prepare(method, None, None, Status(grpc.StatusCode.UNKNOWN, "again"))
    done = run("-r", fake.endpoint, *line.split(), "none", "b", "b")
    assert (done.code, done.stdout) == (1, f"{before}none\n{before}b\n")
    assert done.stderr.endswith("again\n")


def test_a_container_named_twice_is_removed_twice(fake: FakeServer) -> None:
    exited = {"id": "b", "state": cri_pb2.CONTAINER_EXITED}
    fake.offer("ContainerStatus", cri_pb2.ContainerStatusResponse(status=exited))
    fake.prepare("RemoveContainer", None, Status(grpc.StatusCode.UNKNOWN, "being removed"))
    done = run("-r", fake.endpoint, "rm", "b", "b")
    assert (done.code, done.stdout) == (1, "b\n")
    assert done.stderr == 'crictl: removing container "b": being removed\n'


def test_a_missing_configuration_file_is_reported(
    fake: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "crictl")])
    done = Run("-r", fake.endpoint, "completion", environ={})
    assert done.code == 0
    has_one = Path(DEFAULT_PATH).exists()
    warned = done.stderr.startswith(f"crictl: warning: config file {DEFAULT_PATH} does not exist")
    assert warned is not has_one


FULL = "crictl: cannot write to standard output: no space left on device\n"


def test_help_that_is_lost_in_the_end(program: str) -> None:
    with Path("/dev/full").open("w") as full:
        words = [program, "rmi", "--help"], [program, "create"]
        done = [subprocess.run(line, stdout=full, stderr=subprocess.PIPE) for line in words]
    assert [(process.returncode, process.stderr.decode()) for process in done] == [(1, FULL)] * 2
