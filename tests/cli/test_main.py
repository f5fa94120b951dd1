"""The outermost layer: how errors, help and signals look to the user."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from pycrictl import __version__
from pycrictl.cli.table import BY_NAME, COMMANDS
from pycrictl.cli.tree import command_of
from tests.cli.run import Run, start


def test_the_table_cannot_drift() -> None:
    for entry in COMMANDS:
        summary, *texts = (command_of(entry).help or "").split("\n\n")
        assert summary == f"{entry.summary}."
        assert any(text.startswith("Example: pycrictl ") for text in texts), entry.name


def test_names_and_aliases_are_unique() -> None:
    assert len(BY_NAME) == sum(1 + len(entry.aliases) for entry in COMMANDS)


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"], ["h"]])
def test_root_help(words: list[str]) -> None:
    run = Run(*words)
    assert run.code == 0
    text = run.stdout
    assert all(f"  {entry.name}" in text for entry in COMMANDS)
    assert max(map(len, text.splitlines())) <= 80


def test_version_option() -> None:
    run = Run("--version")
    assert run.code == 0
    assert run.stdout == f"pycrictl version {__version__}\n"


def test_unknown_command_suggests_and_exits_3() -> None:
    run = Run("imags")
    assert run.code == 3
    assert run.stderr == 'pycrictl: unknown command "imags"\nhint: did you mean "images"?\n'


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["images", "--nosuch"], 'pycrictl: unknown option "--nosuch"'),
        (["pull"], "pycrictl: no image given"),
        (["version", "x"], "pycrictl: got unexpected extra argument(s) (x)"),
        (["-t", "5", "version"], "pycrictl: invalid value for '-t': \"5\" has no"),
        (["--timeout"], 'pycrictl: option "--timeout" needs a value'),
        (["pull", "--creds", ":x", "a"], "pycrictl: --creds needs a user name before the colon"),
        (["pull", "--pull-timeout=-1s", "a"], "pycrictl: invalid value for '--pull-timeout'"),
    ],
)
def test_usage_errors_are_one_line(words: list[str], line: str) -> None:
    run = Run(*words)
    assert run.code == 1
    assert run.stdout == ""
    assert run.stderr.startswith(line)
    assert len(run.stderr.splitlines()) <= 2


def test_secrets_stay_out_of_errors() -> None:
    run = Run("pull", "--creds", "user:hunter2", "--auth", "c2VjcmV0", "a")
    assert run.code == 1
    assert "hunter2" not in run.stderr
    assert "c2VjcmV0" not in run.stderr


@pytest.mark.parametrize("words", [["--help"], ["completion", "zsh"]])
def test_full_disk_is_one_line(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        process = start(*words, stdout=full)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert stderr == "pycrictl: cannot write to standard output: no space left on device\n"


def test_closed_stdout_is_quiet() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    process = start("--help", stdout=write_end)
    os.close(write_end)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGPIPE
    assert stderr == ""
