"""Bad names and bad runtimes: every command prints one line and exits with 1, no traceback."""

from __future__ import annotations

import io
import shlex
from pathlib import Path

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.runtime.cri.calls.client import method
from tests.captures import runtimes
from tests.cli.run import Run
from tests.fakecri import FakeServer, Status, hostile

NAMED = (
    "inspect NAME", "inspectp NAME", "inspecti NAME", "start NAME", "stop NAME", "stopp NAME",
    "rm NAME", "rm -f NAME", "rmp NAME", "rmp -f NAME", "rmi NAME", "update --memory 1 NAME",
    "checkpoint -e /x NAME", "pull NAME", "create NAME CONTAINER POD",
)  # fmt: skip
"""Commands that act on the named objects."""

SELECTING = (
    "stats -s 0 NAME", "statsp -s 0 NAME", "ps --id NAME", "ps --pod NAME", "ps --image NAME",
    "pods --id NAME", "images NAME",
)  # fmt: skip
"""Commands that use the name as a filter."""

OTHERS = (
    "run CONTAINER POD", "runp POD", "stop --all", "rm --all", "rmp --all", "rmi --all",
    "rmi --prune", "info", "version", "imagefsinfo", "runtime-config", "metricsp",
    "metricdescs", "events", "update-runtime-config -p 10.0.0.0/8",
)  # fmt: skip
EVERY = (*NAMED, *SELECTING, *OTHERS)

CONTENT = (
    "inspect NAME", "inspectp NAME", "inspecti NAME", "rm NAME", "rm -f NAME", "rmp NAME",
    "rmp -f NAME", "rmi NAME", "pull NAME", "create NAME CONTAINER POD", "run CONTAINER POD",
    "runp POD", "info", "version",
)  # fmt: skip
"""Commands for which an empty response is an error; for others it means no items, or success."""

HOSTILE = "\x1b]0;title\x07\x1b[2J\n\r\x9b2J" + "b" * 10_000


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Configuration files by their placeholders in command lines."""
    texts = {
        "POD": "metadata: {name: web, namespace: default}\nlinux: {cgroup_parent: /x}\n",
        "CONTAINER": "metadata: {name: main}\nimage: {image: x/app:1}\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return {name: str(tmp_path / name) for name in texts}


def run(endpoint: str, line: str, files: dict[str, str], name: str = "a") -> Run:
    """Run a line as a shell would, with its placeholders replaced by the name and the files."""
    filled = [{"NAME": name, **files}.get(word, word) for word in shlex.split(line)]
    return Run("--max-retries", "0", "-t", "5s", "-r", endpoint, *filled)


def assert_one_line(done: Run) -> None:
    """Check that there is one error line, perhaps hints, and no control characters."""
    assert (done.code, done.stdout) == (1, "")
    first, *hints = done.stderr.splitlines()
    assert first.startswith("pycrictl: ")
    assert all(hint.startswith("hint: ") for hint in hints)
    assert_printable(done.stderr)


def assert_printable(text: str) -> None:
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in text.replace("\n", ""))
    assert len(text) < 2500


WRONG = (
    ("ps x", "got unexpected extra argument(s) (x)"),
    ("--timeout", 'option "--timeout" needs a value'),
    ("ps --all=maybe", 'option "--all": "maybe" is not a boolean (true or false)'),
    *((f"ps {options}", f'unknown option "{options}"') for options in ("-qx", "-aqz", "--aq")),
    ("ps -o ''", 'unknown output format ""'),
    ("pods -s '\x1b[2J'", r"invalid value for '-s': '\x1b[2J' is not one of"),
    ("pods --label =a", 'invalid value for --label: "=a" is not KEY=VALUE'),
    ("ps --name '('", '"(" for --name is not a valid regular expression'),
    ("ps --sort-by '{'", '"{" is not a JSONPath'),
    ("ps -o 'jsonpath={.a'", '"}" is missing in "{.a"'),
    ("ps -o custom-columns=a", '"a" is not NAME:PATH'),
    ("stats -s -1", '"-1" for --seconds is not between 0 and 86400'),
    ("inspect -o go-template --template '{{' x", "template: :1: unclosed action"),
    ("events --template x", "--template needs --output go-template"),
    ("images -f since", 'unknown filter "since"'),
    ("start", "no container is named"),
    ("stop --all a", "--all and IDs cannot be combined"),
    ("stop -t -1 a", "--timeout must not be negative"),
    ("rm a ''", "an empty container name was given"),
    ("rmi -a -q", "--all and --prune cannot be combined"),
    ("update a", "nothing to update"),
    ("update --oom-score-adj abc a", "invalid value for '--oom-score-adj': \"abc\" is not an"),
    ("update --oom-score-adj 1001 a", "--oom-score-adj must be from -1000 to 1000"),
    ("checkpoint a", "--export is missing"),
    ("update-runtime-config", "nothing to update"),
    ("logs", "missing argument 'CONTAINER'"),
    ("logs --since soon web", '"soon" is not a valid start time'),
    ("exec c", "no command is given after the container ID"),
    ("exec -t c sh", "--tty needs --interactive"),
    ("exec -t -i c sh", "--tty needs a terminal as standard input"),
    ("exec -s -i c sh", "--sync cannot be combined with --interactive or --tty"),
    ("exec --tls-cert x c sh", "--tls-cert and --tls-key go together"),
    ("attach -t c", "--tty needs --stdin"),
    ("port-forward '' 80", "the name of the pod sandbox is empty"),
    ("port-forward p abc", 'invalid ports "abc"'),
    ("port-forward --address x.test p :80", '"x.test" is not an IP address'),
    ("runp", "missing argument 'POD-CONFIG'"),
    ("create p1 POD CONTAINER", "container config"),
    ("run --no-pull --with-pull CONTAINER POD", "--no-pull and --with-pull cannot be combined"),
    ("run --pull-timeout -1s CONTAINER POD", "invalid value for '--pull-timeout'"),
    ("run -T -1s CONTAINER POD", "invalid value for '-T': it must not be negative"),
    ("run --creds u:p --auth x CONTAINER POD", "--creds and --auth cannot be combined"),
    ("-t -1s pull a", "invalid value for '--timeout': it must not be negative"),
    ("pull", "no image is named"),
    ("pull --creds :x a", "--creds needs a user name before the colon"),
    ("pull --parallel 1000 a", "--parallel must be at most 100"),
    ("pull --max-parallel-image-pulls -1 a", "--max-parallel-image-pulls must be from 0 to"),
    ("image-pull-progress --interval 0", "invalid value for '--interval': an interval must be"),
    ("run js", "no schema is selected"),
    ("runp jsonschem", 'cannot read pod config "jsonschem"'),
    ("doctor --registry ''", "an empty registry name was given"),
    ("doctor surplus", "got unexpected extra argument(s) (surplus)"),
    ("cp /a /b", "neither side is in a container"),
    ("cp web:/a db:/b", "both sides are in containers"),
    ("cp web: /b", 'the path in "web:" is not absolute'),
    ("cp web:/a/../b /b", 'the path in "web:/a/../b" contains ".."'),
    ("cp '' web:/a", "a path is empty"),
    ("cp /a :/b", '":/b" does not name a container'),
    ("cp --method ssh /a web:/b", "invalid value for '--method': 'ssh' is not one of"),
    ("cp --max-size 5m /a web:/b", "invalid value for '--max-size'"),
    ("cp /a", "missing argument 'DST'"),
    ("cp /a web:/b /c", "some sources are in containers and others are not"),
)
"""Command lines, and how the error begins. ``test_help`` tries unknown values of all options."""


@pytest.mark.parametrize(("line", "message"), WRONG)
def test_a_wrong_line_is_one_line_before_any_call(
    fake: FakeServer, files: dict[str, str], line: str, message: str
) -> None:
    done = run(fake.endpoint, line, files)
    assert_one_line(done)
    assert done.stderr.startswith(f"pycrictl: {message}")
    assert fake.calls == []


@pytest.mark.parametrize("line", NAMED)
def test_an_empty_name(fake: FakeServer, line: str, files: dict[str, str]) -> None:
    assert_one_line(run(fake.endpoint, line, files, ""))
    assert fake.calls == []


@pytest.mark.parametrize("line", [*NAMED, *SELECTING])
def test_a_name_that_is_not_utf_8(fake: FakeServer, line: str, files: dict[str, str]) -> None:
    done = run(fake.endpoint, line, files, "a\udcff")
    assert_one_line(done)
    assert "is not UTF-8" in done.stderr
    assert fake.calls == []


def test_nothing_is_done_and_no_password_shown_if_a_word_is_not_utf_8(fake: FakeServer) -> None:
    for line, said in (
        ("rm a b\udcff", r'"b\xff" is not UTF-8'),
        ("exec a cat b\udcff", r'"b\xff" is not UTF-8'),
        ("pull --creds me:pass\udcff x", "--creds is not UTF-8"),
        (f"checkpoint -e /\udcff {'a' * 64}", "is not UTF-8"),
    ):
        done = run(fake.endpoint, line, {})
        assert_one_line(done)
        assert said in done.stderr
        assert "pass" not in done.stderr
    assert fake.calls == []


def test_paths_may_be_any_bytes(fake: FakeServer, files: dict[str, str], tmp_path: Path) -> None:
    odd = Path(files["POD"]).rename(tmp_path / "\udcff")
    fake.prepare("RunPodSandbox", cri_pb2.RunPodSandboxResponse(pod_sandbox_id="p"))
    assert run(fake.endpoint, f"runp {odd}", {}).stdout == "p\n"


@pytest.mark.parametrize(
    "line",
    [
        *("runp ''", "run '' POD", "run CONTAINER ''", "create x '' POD", "create x CONTAINER ''"),
        *("pull --pod-config '' x", "image-pull-progress ''", "image-pull-progress --container ''"),
    ],
)
def test_what_a_variable_that_is_not_set_leaves(
    fake: FakeServer, line: str, files: dict[str, str]
) -> None:
    done = run(fake.endpoint, line, files)
    assert_one_line(done)
    assert " is empty\nhint: is a script's variable not set?\n" in done.stderr
    assert fake.calls == []


@pytest.mark.parametrize("line", ["pull -u joe x", "run -u joe --with-pull CONTAINER POD"])
def test_a_password_that_nobody_gives(fake: FakeServer, line: str, files: dict[str, str]) -> None:
    done = run(fake.endpoint, line, files)
    assert_one_line(done)
    assert "password is missing" in done.stderr
    assert fake.calls == []


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_password_that_is_not_utf_8(fake: FakeServer, errors: str) -> None:
    """Python reads standard input strictly, except in the C locale."""
    stdin = io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), "utf-8", errors)
    done = Run("-r", fake.endpoint, "pull", "-u", "joe", "x", stdin=stdin)
    assert_one_line(done)
    assert done.stderr == "pycrictl: the password is not UTF-8\n"
    assert fake.calls == []


@pytest.mark.parametrize(
    "status",
    [
        Status(grpc.StatusCode.NOT_FOUND, f'an error occurred when try to find "{HOSTILE}"'),
        Status(grpc.StatusCode.UNKNOWN, "Multiple IDs found with provided prefix: a"),
        Status(grpc.StatusCode.INVALID_ARGUMENT, "\x00"),
    ],
    ids=["of another kind", "ambiguous", "refused"],
)
@pytest.mark.parametrize("line", NAMED)
def test_a_name_that_the_runtime_refuses(
    fake: FakeServer, line: str, files: dict[str, str], status: Status
) -> None:
    for call in cri_pb2.DESCRIPTOR.services_by_name["RuntimeService"].methods:
        if not call.server_streaming:
            fake.offer(call.name, status)
    for call_name in ("ImageStatus", "RemoveImage", "PullImage"):
        fake.offer(call_name, status)
    assert_one_line(run(fake.endpoint, line, files, HOSTILE))


@pytest.mark.parametrize("line", SELECTING)
def test_a_name_that_selects_nothing(fake: FakeServer, line: str, files: dict[str, str]) -> None:
    offer_nothing(fake)
    done = run(fake.endpoint, line, files, HOSTILE)
    assert_printable(done.stdout)
    assert (done.code, done.stderr) == (0, "") or (done.code == 1 and not done.stdout)


@pytest.mark.parametrize("line", EVERY)
def test_a_runtime_that_dies_at_the_first_request(line: str, files: dict[str, str]) -> None:
    with hostile.dying() as path:
        assert_one_line(run(f"unix://{path}", line, files))


@pytest.mark.parametrize("line", EVERY)
def test_answers_without_anything_in_them(
    fake: FakeServer, line: str, files: dict[str, str]
) -> None:
    offer_nothing(fake)
    done = run(fake.endpoint, line, files, runtimes.IDS["CW"])
    if line in CONTENT:
        assert_one_line(done)
    else:
        assert done.code == 0
        assert_printable(done.stderr)


_CONTAINERS = f"{runtimes.IDS['CW']} {runtimes.IDS['CF']}"
_PODS = f"{runtimes.IDS['PW']} {runtimes.IDS['PB']}"
SEVERAL = (
    f"inspect {_CONTAINERS}", "inspect --state Running", f"inspectp {_PODS}",
    "inspecti busybox pause", "stats -s 0", "statsp -s 0", "ps -a", "stop --all",
    f"stop {_CONTAINERS}", f"stopp {_PODS}", "rm --all --force", f"rm --force {_CONTAINERS}",
    f"rmp --force {_PODS}", "rmp --all --force", "rmi --all", "rmi --prune",
    f"start {runtimes.IDS['CC']} {runtimes.IDS['CO']}", f"update --memory 1 {_CONTAINERS}",
    "pull one two", f"create --with-pull {runtimes.IDS['PW']} CONTAINER POD",
    "run --with-pull CONTAINER POD",
)  # fmt: skip
"""Commands that make several requests."""


@pytest.mark.parametrize("answered", range(1, 5))
@pytest.mark.parametrize("line", SEVERAL)
def test_a_runtime_that_dies_after_some_requests(
    fake: FakeServer, line: str, files: dict[str, str], answered: int
) -> None:
    runtimes.real(fake)
    for call in ("StopContainer", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox"):
        fake.offer(call, None)
    for call in ("StartContainer", "UpdateContainerResources", "RemoveImage"):
        fake.offer(call, None)
    fake.offer("PullImage", cri_pb2.PullImageResponse(image_ref="sha256:" + "a" * 64))
    fake.offer("RunPodSandbox", cri_pb2.RunPodSandboxResponse(pod_sandbox_id="b" * 64))
    fake.offer("CreateContainer", cri_pb2.CreateContainerResponse(container_id="c" * 64))
    fake.lives_for = answered
    done = run(fake.endpoint, line, files)
    assert "Traceback" not in done.stderr
    assert_printable(done.stderr)
    if len(fake.calls) <= answered:
        return  # every request was answered
    assert done.code == 1
    errors = [line for line in done.stderr.splitlines() if line.startswith("pycrictl: ")]
    assert errors
    assert all("UNKNOWN" not in line for line in errors)


def offer_nothing(fake: FakeServer) -> None:
    for service in cri_pb2.DESCRIPTOR.services_by_name.values():
        for call in service.methods:
            fake.offer(call.name, [] if method(call.name).is_stream else None)
