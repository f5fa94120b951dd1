"""The zipapp's cache is filled once, atomically, and never where other users can change it.

A program of three lines stands in for pycrictl.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.building import ROOT
from tests.packaging.installing import INTERPRETER

PROGRAM = """
import os, sys
def run():
    print(os.path.dirname(os.path.dirname(__file__)), *sys.argv[1:], flush=True)
    sys.stdin.read()
    os._exit(0)
"""
BUILD = "import pathlib, pyz, sys; pyz.build(*map(pathlib.Path, sys.argv[1:]))"
PRETEND = "import runpy, sys; {}; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0])"


@pytest.fixture(scope="module")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a zipapp with compiled modules for all supported Pythons."""
    return build(tmp_path_factory.mktemp("pyz"), PROGRAM)


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("newer"), f"{PROGRAM}\n")


def build(folder: Path, program: str) -> Path:
    modules = folder / "modules"
    (modules / "pycrictl").mkdir(parents=True)
    (modules / "pycrictl" / "__main__.py").write_text(program)
    for tag in ("311", "312", "313", "314", "315"):
        (modules / f"it.cpython-{tag}-{os.uname().machine}-linux-gnu.so").write_bytes(b"")
    path = folder / "pycrictl.pyz"
    command = [sys.executable, "-c", BUILD, str(modules), str(path)]
    subprocess.run(command, cwd=ROOT / "packaging", check=True)
    return path


def test_the_same_modules_make_the_same_file(pyz: Path, tmp_path: Path) -> None:
    assert build(tmp_path / "again", PROGRAM).read_bytes() == pyz.read_bytes()


def start(pyz: Path, cache: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["env", "-i", f"XDG_CACHE_HOME={cache}", str(INTERPRETER), str(pyz), "word"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def place(process: subprocess.Popen[str]) -> Path:
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (0, "")
    folder, word = stdout.split()
    assert word == "word"
    return Path(folder)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def elsewhere(pyz: Path, setup: str) -> subprocess.CompletedProcess[str]:
    """Start with the cache `/mnt/cache`, all folders on tmpfs; print the files there at the end."""
    script = f"""set -e
        mount -t tmpfs -o mode=755 tmpfs /mnt
        cp "$1" /mnt/pycrictl.pyz
        mkdir -p -m 700 /mnt/cache/pycrictl
        for place in /var/cache /var/tmp; do mount -t tmpfs -o mode=755 tmpfs $place; done
        mount -t tmpfs -o mode=1777 tmpfs /tmp
        {setup}
        env -i XDG_CACHE_HOME=/mnt/cache "$2" /mnt/pycrictl.pyz
        find /mnt/cache/ -type f
    """
    unshare = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]
    command = [*unshare, str(pyz), str(INTERPRETER)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_it_is_unpacked_once_for_this_interpreter(pyz: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    folder = place(start(pyz, cache))
    assert folder.parent == cache / "pycrictl"
    for path in (cache, folder.parent, folder, folder / "pycrictl" / "__main__.py"):
        assert not path.stat().st_mode & 0o077
    modules = [path.name for path in folder.glob("it.*")]
    tag = f"cpython-{sys.version_info.major}{sys.version_info.minor}"
    assert [tag in name for name in modules] == [True]
    before = folder.stat().st_mtime_ns, names(folder.parent)
    assert place(start(pyz, cache)) == folder
    assert (folder.stat().st_mtime_ns, names(folder.parent)) == before


def test_what_a_killed_start_left_goes(pyz: Path, tmp_path: Path) -> None:
    left = tmp_path / "cache" / "pycrictl" / ".partial-0"
    left.mkdir(parents=True, mode=0o700)
    left.parent.chmod(0o700)
    (left / "file").touch()
    folder = place(start(pyz, tmp_path / "cache"))
    assert names(left.parent) == [folder.name]


def test_an_older_version_goes_unless_it_is_running(pyz: Path, newer: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    own = cache / "pycrictl" / "history"  # not the zipapp's
    own.mkdir(parents=True, mode=0o700)
    own.parent.chmod(0o700)
    older = place(start(pyz, cache))
    new = place(start(newer, cache))
    assert names(new.parent) == sorted([own.name, new.name])
    running = start(pyz, cache)
    assert running.stdout is not None
    assert running.stdout.readline().startswith(str(older))
    assert names(new.parent) == sorted([own.name, older.name])
    assert place(start(newer, cache)) == new
    assert names(new.parent) == sorted([own.name, older.name, new.name])
    running.communicate(timeout=60)


def test_starts_at_the_same_time_of_versions_that_remove_each_other(
    pyz: Path, newer: Path, tmp_path: Path
) -> None:
    started = [start(file, tmp_path / "cache") for _ in range(6) for file in (pyz, newer)]
    folders = {place(process) for process in started}
    assert len(folders) == 2
    assert {*names(tmp_path / "cache" / "pycrictl")} <= {folder.name for folder in folders}


@pytest.mark.root
@pytest.mark.parametrize(
    "setup",
    [
        "chown 65534 /mnt/cache/pycrictl",
        "chmod 770 /mnt/cache/pycrictl",
        "mv /mnt/cache/pycrictl /mnt/cache/it; ln -s it /mnt/cache/pycrictl",
        "chown 65534 /mnt/cache",
        "chmod 777 /mnt/cache",
        "mount -t tmpfs -o mode=700,noexec tmpfs /mnt/cache/pycrictl",
        "mount -t tmpfs -o mode=700,ro tmpfs /mnt/cache/pycrictl",
        "mount -t tmpfs -o mode=700,nr_inodes=3 tmpfs /mnt/cache/pycrictl",
    ],
)
def test_a_cache_that_is_not_safe_is_not_used(pyz: Path, setup: str) -> None:
    started = elsewhere(pyz, setup)
    (folder,) = started.stdout.splitlines()
    assert Path(folder).parent == Path("/var/cache/pycrictl")
    assert started.stderr == ""


@pytest.mark.root
@pytest.mark.parametrize(
    ("planted", "reason"),
    [
        ("mkdir -m 700 /mnt/root; ln -s /mnt/root /tmp/pycrictl-0", "is a link"),
        ("mkdir -m 700 /tmp/pycrictl-0; chown 65534 /tmp/pycrictl-0", "belongs to another user"),
        ("mkdir -m 777 /tmp/pycrictl-0", "is open to other users"),
        ("touch /tmp/pycrictl-0", "file exists"),
    ],
)
def test_nowhere_to_unpack_to(pyz: Path, planted: str, reason: str) -> None:
    read_only = "for it in /mnt/cache /var/cache /var/tmp; do mount -t tmpfs -o ro tmpfs $it; done"
    started = elsewhere(pyz, f"umask 0; {planted}; {read_only}")
    assert (started.returncode, started.stdout) == (1, "")
    (line,) = started.stderr.splitlines()
    assert line.startswith("pycrictl.pyz: nowhere to unpack to, set XDG_CACHE_HOME (/mnt/cache/")
    assert line.count("read-only file system") == 3
    assert "/tmp/pycrictl-0" in line
    assert reason in line


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ("sys.version_info = (3, 9)", "needs Python 3.11 or newer, and {} is 3.9"),
        (
            "from importlib import machinery; machinery.EXTENSION_SUFFIXES[0] = '.cpython-399.so'",
            "serves Pythons with modules in .cpython-311-",
        ),
    ],
)
def test_an_interpreter_that_is_not_served(
    pyz: Path, tmp_path: Path, facts: str, message: str
) -> None:
    command = [str(INTERPRETER), "-c", PRETEND.format(facts), str(pyz)]
    started = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (started.returncode, started.stdout) == (1, "")
    (line,) = started.stderr.splitlines()
    assert line.startswith(f"pycrictl.pyz: {message.format(INTERPRETER)}")


def test_old_interpreters_can_read_what_refuses_them() -> None:
    source = (ROOT / "packaging" / "pyz" / "__main__.py").read_text()
    ast.parse(source, feature_version=(3, 0))
    assert not re.search(r"\bf['\"]|: [a-z]+ = |from __future__", source)
