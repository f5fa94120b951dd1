"""Reading the settings of pulls from containerd's configuration."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pycrictl.runtime.containerd.daemon import (
    DEFAULT_PATH,
    config_path,
    read_settings,
)

CRI = '[plugins."io.containerd.grpc.v1.cri"]'
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


def found(path: Path) -> tuple[int, str]:
    settings = read_settings(path)
    return settings.max_concurrent_downloads, settings.snapshotter


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[plugins.cri]\nmax_concurrent_downloads = 4\n", (4, "overlayfs")),
        (VERSION_2, (5, "native")),
        (VERSION_3, (7, "stargz")),
        ("", (3, "overlayfs")),
        ("not toml", (3, "overlayfs")),
        ('[plugins]\n"io.containerd.grpc.v1.cri" = 5', (3, "overlayfs")),
        (f'{CRI}\nmax_concurrent_downloads = "3"', (3, "overlayfs")),
        (f"{CRI}\ncontainerd = 5\nsnapshotter = 5", (3, "overlayfs")),
        ('imports = "x"', (3, "overlayfs")),
    ],
)
def test_versions_and_defaults(tmp_path: Path, text: str, expected: tuple[int, str]) -> None:
    assert found(write(tmp_path / "config.toml", text)) == expected


def test_imports_are_merged_in_version_3(tmp_path: Path) -> None:
    main = write(
        tmp_path / "config.toml", f'imports = ["conf.d/*.toml", "/none.toml"]\n{VERSION_3}'
    )
    section = "version = 3\n[plugins.'io.containerd.cri.v1.images']\n"
    write(tmp_path / "conf.d/a.toml", f"{section}max_concurrent_downloads = 8\nregistry = {{}}\n")
    write(tmp_path / "conf.d/b.toml", f"{section}max_concurrent_downloads = 9\n")
    write(tmp_path / "conf.d/c.conf", f"{section}max_concurrent_downloads = 10\n")
    assert found(main) == (9, "stargz")
    assert read_settings(main).registry_origin == str(tmp_path / "conf.d/a.toml")


def test_an_imported_section_replaces_the_whole_one_in_version_2(tmp_path: Path) -> None:
    imported = write(tmp_path / "extra.toml", f"version = 2\n{CRI}\nmax_concurrent_downloads = 8\n")
    main = write(
        tmp_path / "config.toml", f'imports = ["{imported}"]\n{VERSION_2}\n{CRI[:-1]}.registry]\n'
    )
    assert found(main) == (8, "overlayfs")
    assert read_settings(main).registry_origin == ""


def test_imports_in_a_circle(tmp_path: Path) -> None:
    main = write(tmp_path / "config.toml", f'imports = ["*.toml"]\n{VERSION_2}')
    write(tmp_path / "other.toml", 'version = 2\nimports = ["config.toml", 5, ""]\n')
    assert found(main) == (5, "native")


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
