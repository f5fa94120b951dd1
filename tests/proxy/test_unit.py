"""The systemd units match the program."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from pycrictl.cli import admin_socket
from pycrictl.cli.argv import by_spelling
from pycrictl.cli.command_table import BY_NAME
from pycrictl.cli.tree import command_of
from pycrictl.proxy import settings
from pycrictl.proxy.telemetry.history_file import STATE_FOLDER
from tests.proxy.settings import settings_from

UNIT = Path(__file__).parents[2] / "packaging" / "pycrictl-proxy.service"

PLAIN = ("--upstream=/u.sock", "--config=/dev/null")
AGENT = UNIT.with_name("pycrictl-agent.service")


def entries(unit: Path = UNIT) -> dict[str, str]:
    lines = [line for line in unit.read_text().splitlines() if "=" in line and line[0] != "#"]
    values = dict(line.split("=", 1) for line in lines)
    assert len(values) == len(lines)  # no key occurs twice
    return values


@pytest.mark.parametrize("unit", [UNIT, AGENT])
def test_it_starts_this_program(unit: Path) -> None:
    program, command, *words = shlex.split(entries(unit)["ExecStart"])
    assert Path(program).name == "pycrictl"
    options = by_spelling(command_of(BY_NAME[command]).params)
    assert {word.lstrip("-") for word in words if word.startswith("-")} <= options.keys()
    assert unit == AGENT or settings.DEFAULT_PATH in words


def test_systemd_makes_the_directory_of_the_sockets() -> None:
    unit = entries()
    directory = f"unix:///run/{unit['RuntimeDirectory']}/"
    assert settings.DEFAULT_LISTEN.startswith(directory)
    assert admin_socket.DEFAULT.startswith(directory)
    assert unit["RuntimeDirectoryMode"] == "0700"


def test_the_service_keeps_a_history_without_being_told_where() -> None:
    environ = {"STATE_DIRECTORY": f"/var/lib/{entries()['StateDirectory']}"}  # systemd.exec(5)
    assert settings_from(*PLAIN, environ=environ).state_dir == STATE_FOLDER
    assert settings_from(*PLAIN, "--state-dir=", environ=environ).state_dir == ""


def test_when_it_is_ready_reloaded_and_stopped() -> None:
    unit = entries()
    assert (unit["Type"], unit["ExecReload"]) == ("notify", f"{unit['ExecStart']} --reload")
    assert "kubelet.service" in unit["Before"]
    # Neither the program nor systemd sets a limit, nor ends a process that has handed over.
    assert settings_from(*PLAIN).drain_timeout_s is None
    assert (unit["TimeoutStopSec"], unit["KillMode"]) == ("infinity", "process")
