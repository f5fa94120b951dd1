"""What must not be imported before it is needed, seen in a fresh interpreter.

A budget of modules fails the build, never one of milliseconds: counts do not flake.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from pycrictl._proto import cri_pb2
from tests.fakecri import FakeServer, Status

HEAVY = (
    *("grpc", "google.protobuf", "websockets", "tqdm", "yaml", "rich", "asyncio", "pydantic"),
    *("tarfile", "logging", "http", "ssl", "tomli"),
)

PROBE = """
import json, sys
from pycrictl.cli.main import main
code = main(sys.argv[1:])
sys.stdout.flush()
print("\\n" + json.dumps([code, sorted(sys.modules)]))
"""

HELP_MODULES = 110
"""Modules that the root help may import, the interpreter's included."""

LIST_MODULES = 165 if sys.version_info < (3, 14) else 170  # annotationlib, ast
"""Modules that ``ps`` may import, the interpreter's included."""

UNUSED = {
    *("inspect", "dataclasses", "logging", "pathlib", "difflib", "subprocess"),
    *("google.protobuf.text_format", "google.protobuf.internal.builder", "socket", "base64"),
}
"""What is dear and of no use to a list."""


def modules_after(*words: str) -> tuple[int, set[str]]:
    result = subprocess.run(
        [sys.executable, "-c", PROBE, *words], capture_output=True, text=True, check=True
    )
    code, modules = json.loads(result.stdout.splitlines()[-1])
    return code, set(modules)


@pytest.mark.parametrize(
    "words", [[], ["--help"], ["--version"], ["help"], ["images", "--help"], ["nosuch"]]
)
def test_answers_without_heavy_modules(words: list[str]) -> None:
    _, modules = modules_after(*words)
    assert not [name for name in HEAVY if name in modules]


def test_root_help_imports_no_command() -> None:
    code, modules = modules_after("--help")
    assert code == 0
    assert not [name for name in modules if name.startswith("pycrictl.cli.commands.")]
    assert len(modules) <= HELP_MODULES


def test_a_commands_help_imports_only_that_command() -> None:
    code, modules = modules_after("images", "--help")
    assert code == 0
    loaded = {name for name in modules if name.startswith("pycrictl.cli.commands.")}
    assert loaded == {"pycrictl.cli.commands.images", "pycrictl.cli.commands.images.images"}


@pytest.mark.parametrize(
    "words",
    [
        *(["ps"], ["images"], ["pods"], ["inspect", "a"], ["version"], ["logs", "a"]),
        *(["exec", "a", "b"], ["pull", "a"], ["rm", "a"], ["config", "--list"], ["completion"]),
        *(["runp", "jsonschema"], ["--help"], ["ps", "--help"], ["--version"], ["nosuch"]),
        *(["ps", "--nosuch"], ["help", "pull"]),
    ],
    ids=" ".join,
)
def test_a_line_is_read_without_typer(words: list[str]) -> None:
    _, modules = modules_after("-r", "/nonexistent", "--max-retries=0", *words)
    assert "pycrictl.cli.plain" in modules
    assert not [name for name in modules if name.partition(".")[0] in ("typer", "click", "rich")]
    assert "pycrictl.cli.validation" not in modules


def test_a_list_imports_little(fake: FakeServer) -> None:
    fake.offer("ListContainers", cri_pb2.ListContainersResponse())
    code, modules = modules_after("-r", fake.endpoint, "ps")
    assert code == 0
    assert not UNUSED & modules
    assert len(modules) <= LIST_MODULES, len(modules)


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
    assert not {"asyncio", "grpc"} & modules
