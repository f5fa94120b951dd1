"""Reading the settings of pulls from containerd's configuration."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pycrictl.runtime.containerd.config_toml import (
    DEFAULT_PATH,
    PullSettings,
    config_path,
    from_file,
)

VERSION_2 = """
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  max_concurrent_downloads = 5
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
"""
VERSION_3 = """
version = 3
[plugins.'io.containerd.cri.v1.images']
  max_concurrent_downloads = 7
  snapshotter = "stargz"
[plugins.'io.containerd.grpc.v1.cri']
  stream_server_port = "0"
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[plugins.cri]\nmax_concurrent_downloads = 4\n", PullSettings(4)),
        (VERSION_2, PullSettings(5, "native")),
        (VERSION_3, PullSettings(7, "stargz")),
    ],
)
def test_versions(tmp_path: Path, text: str, expected: PullSettings) -> None:
    file = write(tmp_path / "config.toml", text)
    assert from_file(file) == replace(expected, origin=str(file))


def test_imports_are_merged_in_version_3(tmp_path: Path) -> None:
    main = write(
        tmp_path / "config.toml", f'imports = ["conf.d/*.toml", "/none.toml"]\n{VERSION_3}'
    )
    section = "version = 3\n[plugins.'io.containerd.cri.v1.images']\n"
    write(tmp_path / "conf.d/a.toml", f"{section}max_concurrent_downloads = 8\n")
    last = write(tmp_path / "conf.d/b.toml", f"{section}max_concurrent_downloads = 9\n")
    write(tmp_path / "conf.d/c.conf", f"{section}max_concurrent_downloads = 10\n")
    assert from_file(main) == PullSettings(9, "stargz", str(last))


def test_an_imported_section_replaces_the_whole_one_in_version_2(tmp_path: Path) -> None:
    imported = write(
        tmp_path / "extra.toml",
        'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nmax_concurrent_downloads = 8\n',
    )
    main = write(tmp_path / "config.toml", f'imports = ["{imported}"]\n{VERSION_2}')
    assert from_file(main) == PullSettings(8, origin=str(imported))


def test_imports_in_a_circle(tmp_path: Path) -> None:
    main = write(tmp_path / "config.toml", f'imports = ["*.toml"]\n{VERSION_2}')
    write(tmp_path / "other.toml", 'version = 2\nimports = ["config.toml", 5, ""]\n')
    assert from_file(main).max_concurrent_downloads == 5


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not toml",
        '[plugins]\n"io.containerd.grpc.v1.cri" = 5',
        '[plugins."io.containerd.grpc.v1.cri"]\nmax_concurrent_downloads = "3"',
        '[plugins."io.containerd.grpc.v1.cri"]\ncontainerd = 5\nsnapshotter = 5',
        'imports = "x"',
    ],
)
def test_nothing_configured(tmp_path: Path, text: str) -> None:
    found = from_file(write(tmp_path / "config.toml", text))
    assert replace(found, origin="") == PullSettings()


def run_with_arguments(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a process in ``folder`` that waits for a line on stdin."""
    script = write(folder / "daemon.py", 'input("ready\\n")')
    process = subprocess.Popen(
        [sys.executable, script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=folder,
    )
    # /proc may not yet show the arguments of a new process.
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--config", "/a/b.toml"), "/a/b.toml"),
        (("--root", "x", "--config=/a/b.toml"), "/a/b.toml"),
        (("-c", "/a/b.toml", "-l", "debug"), "/a/b.toml"),
        (("-c", "b.toml"), "{cwd}/b.toml"),
        (("--log-level", "info"), str(DEFAULT_PATH)),
    ],
)
def test_the_path_is_the_daemons_argument(
    tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    with run_with_arguments(tmp_path, *arguments) as process:
        path = config_path(process.pid)
        process.communicate(b"\n")
    assert str(path) == expected.format(cwd=tmp_path)


def test_the_usual_path_without_a_process() -> None:
    assert config_path(None) == config_path(0) == config_path(2**31 - 1) == DEFAULT_PATH
