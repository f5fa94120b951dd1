"""Modules that must not be imported before they are needed, seen in a fresh interpreter."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.cli.command_table import COMMANDS
from tests.fakecri import FakeServer

HEAVY = (
    "rich", "pydantic", "websockets", "tqdm", "yaml", "tomli", "tarfile",
    "aiohttp", "prometheus_client", "urllib3",
)  # fmt: skip
"""Modules that neither a list nor the help needs."""

PROBE = """
import json, sys
from pycrictl.cli.main import main
code = main(sys.argv[1:])
sys.stdout.flush()
print("\\n" + json.dumps([code, sorted(sys.modules)]))
"""


def modules_after(*words: str) -> tuple[int, set[str]]:
    result = subprocess.run(
        [sys.executable, "-c", PROBE, *words], capture_output=True, text=True, check=True
    )
    code, modules = json.loads(result.stdout.splitlines()[-1])
    return code, set(modules)


def commands(modules: set[str]) -> set[str]:
    """Return the modules of commands among some modules."""
    loaded = {name.removeprefix("pycrictl.cli.commands.") for name in modules}
    return loaded & {entry.target.partition(":")[0] for entry in COMMANDS}


@pytest.mark.parametrize("words", [[], ["--help"], ["--version"], ["help"], ["nosuch"]])
def test_the_programs_help_loads_no_command(words: list[str]) -> None:
    _, modules = modules_after(*words)
    assert not commands(modules)
    assert not modules & {*HEAVY, "grpc", "google.protobuf"}


def test_a_commands_help_loads_that_command() -> None:
    code, modules = modules_after("images", "--help")
    assert code == 0
    assert commands(modules) == {"listing"}
    assert not modules & {*HEAVY, "grpc"}


def test_a_list_loads_what_it_needs(fake: FakeServer) -> None:
    fake.offer("ListContainers", cri_pb2.ListContainersResponse())
    code, modules = modules_after("-r", fake.endpoint, "ps")
    assert code == 0
    assert commands(modules) == {"listing"}
    unneeded = {"pulls.state", "show.displays.outlet", "show.gotemplate"}
    assert not modules & {*HEAVY, *(f"pycrictl.{name}" for name in unneeded)}


def test_a_command_without_a_stream_loads_no_streams(fake: FakeServer) -> None:
    fake.offer("ExecSync", cri_pb2.ExecSyncResponse())
    code, modules = modules_after("-r", fake.endpoint, "exec", "--sync", "c", "true")
    assert code == 0
    assert commands(modules) == {"exec"}
    assert not modules & {*HEAVY, "h11", "pycrictl.streams.wire.command"}
    assert not any(re.match(r"pycrictl[.]streams[.](?!wire)", name) for name in modules)
