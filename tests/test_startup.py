"""What must not be imported before it is needed, seen in a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.cli.table import COMMANDS
from tests.fakecri import FakeServer, Status

HEAVY = (
    *("rich", "pydantic", "websockets", "tqdm", "yaml", "tomli", "tarfile"),
    *("aiohttp", "cryptography", "prometheus_client", "urllib3"),
)
"""What neither a list nor the help has a use for."""

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
    """The modules of commands among some."""
    found = {name.removeprefix("pycrictl.cli.commands.") for name in modules}
    return found & {entry.target.partition(":")[0] for entry in COMMANDS}


@pytest.mark.parametrize("words", [[], ["--help"], ["--version"], ["help"], ["nosuch"]])
def test_the_programs_help_loads_no_command(words: list[str]) -> None:
    _, modules = modules_after(*words)
    assert not commands(modules)
    assert not modules & {*HEAVY, "grpc", "google.protobuf"}


def test_a_commands_help_loads_that_command() -> None:
    code, modules = modules_after("images", "--help")
    assert code == 0
    assert commands(modules) == {"listing"}
    assert not modules & set(HEAVY)


def test_a_list_loads_what_it_needs(fake: FakeServer) -> None:
    fake.offer("ListContainers", cri_pb2.ListContainersResponse())
    code, modules = modules_after("-r", fake.endpoint, "ps")
    assert code == 0
    assert commands(modules) == {"listing"}
    assert not modules & set(HEAVY)


@pytest.mark.parametrize(
    ("status", "last"),
    [
        (grpc.StatusCode.NOT_FOUND, "stream.over_rpc"),
        (grpc.StatusCode.UNIMPLEMENTED, "node.on_node"),
    ],
)
def test_a_copy_loads_a_method_when_its_turn_comes(
    fake: FakeServer, tmp_path: Path, status: grpc.StatusCode, last: str
) -> None:
    container = cri_pb2.Container(id="a" * 64, state=cri_pb2.CONTAINER_RUNNING)
    fake.offer("ListContainers", cri_pb2.ListContainersResponse(containers=[container]))
    fake.offer("CopyFromContainer", Status(status, "no"))
    fake.offer("ContainerStatus", Status(grpc.StatusCode.NOT_FOUND, "gone"))
    code, modules = modules_after("-r", fake.endpoint, "cp", "aaa:/f", str(tmp_path / "f"))
    assert code == 1
    methods = ["stream.over_rpc", "node.on_node", "exec.over_exec"]
    loaded = [name for name in methods if f"pycrictl.copy.{name}" in modules]
    assert loaded == methods[: methods.index(last) + 1]
