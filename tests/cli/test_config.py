"""``config`` as a whole, compared with crictl's output."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captures import capture
from tests.cli.run import Run

REAL = """\
runtime-endpoint: unix:///scene/node/containerd.sock
image-endpoint: unix:///scene/node/containerd.sock
timeout: 20
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "c.yaml"
    file.write_text(REAL)
    return file


def config(file: Path, *words: str) -> Run:
    return Run("-c", str(file), "config", *words)


def test_list(file: Path) -> None:
    run = config(file, "--list")
    assert (run.code, run.stderr) == (0, "")
    # crictl clears the screen even on a pipe, and lists a key that its release refuses.
    recorded = capture("config-list").output.removeprefix("^[[2J^[[H")
    assert run.stdout == recorded.replace("max-retries            0\n", "")


@pytest.mark.parametrize("words", ["--get timeout", "-get=timeout", "timeout", "--list"])
def test_looking_changes_nothing(file: Path, words: str) -> None:
    run = config(file, *words.split())
    assert (run.code, run.stderr, file.read_text()) == (0, "", REAL)
    assert run.stdout == "20\n" or words == "--list"
    file.unlink()
    assert config(file, *words.split()).code == 0
    assert not file.exists()


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["--set", "timeout=7,debug=true"], ["timeout: 7", "debug: true"]),
        (["--set", "timeout=7", "--set", "max-retries=-1"], ["timeout: 7", "max-retries: -1"]),
        (["timeout", "7"], ["timeout: 7"]),
    ],
)
def test_set(file: Path, words: list[str], lines: list[str]) -> None:
    run = config(file, *words)
    assert (run.code, run.stdout, run.stderr) == (0, "", "")
    zeros = [f"{key}: false" for key in ("debug", "pull-image-on-create", "disable-pull-on-run")]
    written = file.read_text().splitlines()
    assert written[:2] == REAL.splitlines()[:2]
    assert {*lines} <= {*written[2:]} <= {*lines, *zeros}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "give one of --get, --set, --list"),
        (["--get", "timeout", "--list"], "give one of"),
        (["a", "b", "c"], "unexpected extra argument(s) (c)"),
        (["--get", "nokey"], 'no configuration key is named "nokey"'),
        (["--get", ""], 'no configuration key is named ""'),
        (["nokey", "1"], 'no configuration key is named "nokey"'),
        (["--set", "debug"], '"debug" is not KEY=VALUE'),
        (["--set", "timeout=2s"], 'timeout: "2s" is not a whole number'),
        (["--set", "debug=true,timeout=x"], 'timeout: "x" is not a whole number'),
        (["--set", "debug=yes"], 'debug: "yes" is not a boolean'),
        (["timeout", "1\n# x"], "is not a whole number"),
        (["timeout", ""], 'timeout: "" is not a whole number'),
    ],
)
def test_usage_errors(file: Path, words: list[str], line: str) -> None:
    run = config(file, *words)
    assert (run.code, run.stdout) == (1, "")
    assert line in run.stderr.splitlines()[0]
    assert file.read_text() == REAL
