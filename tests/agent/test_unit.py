"""The systemd unit fits the program."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from pycrictl.cli.command_table import BY_NAME
from pycrictl.cli.tree import command_of, specs
from tests.proxy.test_unit import entries

UNIT = Path(__file__).parents[2] / "packaging/pycrictl-agent.service"


def test_it_starts_this_program() -> None:
    program, command, *words = shlex.split(entries(UNIT)["ExecStart"])
    assert (Path(program).name, command) == ("pycrictl", "agent")
    options = specs(command_of(BY_NAME[command]).params)
    assert {word.lstrip("-") for word in words if word.startswith("-")} <= options.keys()


def test_what_it_may_cost_is_bounded() -> None:
    unit = entries(UNIT)
    assert {"MemoryMax", "TasksMax", "LimitNOFILE"} <= unit.keys()
    assert unit["CapabilityBoundingSet"] == ""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_it(tmp_path: Path) -> None:
    program = tmp_path / "pycrictl"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/usr/local/bin/pycrictl", str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True
    )
    assert UNIT.name not in done.stderr, done.stderr
