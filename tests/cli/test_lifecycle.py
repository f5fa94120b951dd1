"""``start stop stopp update checkpoint`` and ``update-runtime-config`` as a whole."""

from __future__ import annotations

import grpc
import pytest

from pycrictl._proto import cri_pb2
from tests.cli.run import Run
from tests.fakecri import FakeServer, Status, hang

MISSING = Status(grpc.StatusCode.NOT_FOUND, "no such container")


def run(fake: FakeServer, *words: str) -> Run:
    return Run("-t", "5s", "-r", fake.endpoint, *words)


@pytest.mark.parametrize(
    ("words", "method", "doing"),
    [
        (["start"], "StartContainer", "starting container"),
        (["stop"], "StopContainer", "stopping container"),
        (["stopp"], "StopPodSandbox", "stopping pod sandbox"),
        (["update", "--memory", "1"], "UpdateContainerResources", "updating container"),
        (["checkpoint", "-e", "/x"], "CheckpointContainer", "checkpointing container"),
    ],
)
class TestOneAfterTheOther:
    def test_the_first_failure_ends_it(
        self, fake: FakeServer, words: list[str], method: str, doing: str
    ) -> None:
        fake.prepare(method, None, MISSING)
        result = run(fake, *words, "a", "b", "c", "d")
        assert result.code == 1
        assert result.stdout == ("Stopped sandbox a\n" if words == ["stopp"] else "a\n")
        assert result.stderr.splitlines()[-2:] == [
            f'pycrictl: {doing} "b": not found: no such container',
            'hint: not tried after this: "c", "d"',
        ]
        assert fake.methods().count(method) == 2

    def test_the_same_target_twice_is_one(
        self, fake: FakeServer, words: list[str], method: str, doing: str
    ) -> None:
        fake.prepare(method, None)
        assert run(fake, *words, "a", "a").code == 0

    @pytest.mark.parametrize("ids", [[], [""], ["a", ""]])
    def test_ids_must_be_given(
        self, fake: FakeServer, words: list[str], method: str, doing: str, ids: list[str]
    ) -> None:
        result = run(fake, *words, *ids)
        assert result.code == 1
        assert len(result.stderr.splitlines()) == 1
        assert fake.calls == []

    def test_escape_sequences_do_not_pass(
        self, fake: FakeServer, words: list[str], method: str, doing: str
    ) -> None:
        fake.prepare(method, None, MISSING)
        result = run(fake, *words, "\x1b[2Ja", "\x1b[2J" + "b" * 10_000)
        assert "\x1b" not in result.stdout + result.stderr
        assert len(result.stderr) < 1000


def test_what_was_done_is_told_at_once(fake: FakeServer) -> None:
    fake.prepare("StopContainer", None, hang())
    result = Run("-t", "1500ms", "-r", fake.endpoint, "stop", "a", "b")
    assert (result.code, result.stdout) == (1, "a\n")
    assert result.stderr.startswith('pycrictl: stopping container "b": no answer within 1.5s\n')


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["stop", "--all", "a"], "--all and IDs cannot be combined"),
        (["stop", "-t", "-1", "a"], "--timeout must not be negative"),
        (["update", "a"], "nothing to update"),
        (["update", "--cpu-count", "1", "a"], "nothing to update"),
        (["update", "--oom-score-adj", "abc", "a"], '"abc" is not an integer'),
        (["update", "--oom-score-adj", "1001", "a"], "must be from -1000 to 1000"),
        (["update", "--memory", "1Gi", "a"], '"1Gi" is not an integer'),
        (["checkpoint", "a"], "--export is missing"),
        (["update", "--cpuset-cpus", "", "--cpuset-mems", "", "a"], "every limit is empty"),
        (["update-runtime-config"], "nothing to update"),
        (["update-runtime-config", "--pod-cidr", ""], "--pod-cidr is empty"),
        (["update-runtime-config", "-p", "10.0.0.0/8", "x"], "unexpected extra argument"),
    ],
)
def test_bad_input_is_refused_before_any_call(
    fake: FakeServer, words: list[str], line: str
) -> None:
    result = run(fake, *words)
    assert (result.code, result.stdout) == (1, "")
    assert line in result.stderr.splitlines()[0]
    assert fake.calls == []


def test_stop_all_without_containers(fake: FakeServer) -> None:
    fake.prepare("ListContainers", cri_pb2.ListContainersResponse())
    result = run(fake, "stop", "-a")
    assert (result.code, result.stdout) == (0, "No running containers found.\n")


def test_an_option_of_zero_is_sent(fake: FakeServer) -> None:
    fake.prepare("UpdateContainerResources", None)
    assert run(fake, "update", "--oom-score-adj", "0", "a").code == 0
    assert fake.calls[0].request.HasField("linux")


def test_an_empty_limit_among_others_is_none(fake: FakeServer) -> None:
    fake.prepare("UpdateContainerResources", None)
    assert run(fake, "update", "--memory", "1", "--cpuset-cpus", "", "a").code == 0
    wanted = cri_pb2.LinuxContainerResources(memory_limit_in_bytes=1)
    assert fake.calls[0].request.linux == wanted


def test_windows_options_are_told_to_be_ignored(fake: FakeServer) -> None:
    fake.prepare("UpdateContainerResources", None)
    result = run(fake, "update", "--cpu-count", "1", "--cpu-share", "2", "a")
    assert result.code == 0
    assert "are for Windows" in result.stderr
    assert fake.calls[0].request.linux.cpu_shares == 2


def test_several_checkpoints_in_one_file_are_warned_of(fake: FakeServer) -> None:
    fake.prepare("CheckpointContainer", None, None)
    result = run(fake, "checkpoint", "--export=/x.tar", "a", "b")
    assert (result.code, result.stdout) == (0, "a\nb\n")
    assert "only the last one remains" in result.stderr
    assert [call.request.timeout for call in fake.calls] == [5, 5]


def test_update_runtime_config(fake: FakeServer) -> None:
    fake.prepare("UpdateRuntimeConfig", None)
    result = run(fake, "update-runtime-config", "-p", "10.1.0.0/16")
    assert (result.code, result.stdout, result.stderr) == (0, "", "")
    config = fake.calls[0].request.runtime_config
    assert config.network_config.pod_cidr == "10.1.0.0/16"
