"""Run the tests that need no node with every supported Python.

    python -m tools.pythons [--lowest] [VERSION]... [--tests WORD...]

The Python that runs this comes first: for `make`, the system's. An interpreter that is neither on
this machine nor in pyenv is taken from the Debian release that has it: in a root made with
debootstrap below `build/pythons`, which needs root. Roots and environments are kept for the next
run. WORDs are for pytest, in place of those for all tests.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
PLACE: Final = ROOT / "build" / "pythons"
RELEASES: Final = {"3.11": "bookworm", "3.13": "trixie", "3.14": "sid", "3.15": "sid"}
"""The Debian releases that have a version of Python."""

_PACKAGES: Final = (
    "git,bash,bash-completion,zsh,fish,jq,man-db,mandoc,procps,iproute2,openssl,"
    "busybox-static,util-linux-extra,kubernetes-client,docker-registry"
)
_SHARED: Final = (str(ROOT), "/proc", "/dev", "/sys", "/etc/ssl", "/etc/resolv.conf")
"""Paths that the roots share with this machine."""

_UNSHARED: Final = ("unshare", "--mount", "--propagation", "private")
_TESTS: Final = ("-n", "2", "-m", "not node")
_WITHOUT_COMPILER: Final = ("--ignore", "tests/proto")
"""The compiler of the messages itself needs the newest versions of some dependencies."""


def versions() -> list[str]:
    """Return the versions of Python that the classifiers name, such as ``3.11``: this one first."""
    words = [line.rpartition(" :: ")[2] for line in _project()["project"]["classifiers"]]
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    return sorted((word for word in words if word.startswith("3.")), key=lambda word: word != ours)


def lowest() -> list[str]:
    """Return all dependencies of the program, pinned to the lowest version that is allowed."""
    project = _project()["project"]
    pins = []
    for line in chain(project["dependencies"], *project["optional-dependencies"].values()):
        bounds, semicolon, marker = line.partition(";")
        bound = bounds.split(",")[0]
        if ">=" not in bound:
            raise ValueError(f"has no lowest version: {line}")
        pins.append(bound.replace(">=", "==") + semicolon + marker)
    return pins


def main() -> int:
    parser = argparse.ArgumentParser(prog="pythons", description=__doc__)
    parser.add_argument("versions", nargs="*", default=versions(), metavar="VERSION")
    parser.add_argument(
        "--lowest", action="store_true", help="with the lowest versions of the dependencies"
    )
    parser.add_argument("--tests", nargs=argparse.REMAINDER, default=list(_TESTS), metavar="WORD")
    arguments = parser.parse_args()
    failed = []
    for version in arguments.versions:
        print(f"pythons: {version}{', lowest' * arguments.lowest}", flush=True)
        try:
            _test(version, is_lowest=arguments.lowest, words=arguments.tests)
        except subprocess.CalledProcessError as exc:
            print(f"pythons: {version}: '{exc.cmd[-1]}' ended with {exc.returncode}")
            failed.append(version)
        except LookupError as exc:
            print(f"pythons: {version}: {exc}")
            failed.append(version)
    return 1 if failed else 0


def _test(version: str, *, is_lowest: bool, words: list[str]) -> None:
    inside, interpreter = _interpreter(version)
    environment = PLACE / (version + "-lowest" * is_lowest)
    python = str(environment / "bin" / "python")
    if not environment.exists():
        _run(*inside, interpreter, "-m", "venv", str(environment))
        _run(*inside, python, "-m", "pip", "install", "--quiet", "--upgrade", "pip")
    install = [*inside, python, "-m", "pip", "install", "--quiet"]
    project = [*install, "--editable", ".", "--group", "test"]
    if is_lowest:
        _run(*project)
        _run(*install, *lowest())  # separately, as the group pins some of them
    else:
        _run(*project, "--group", "dev", "--upgrade", "--upgrade-strategy", "eager")
    without = _WITHOUT_COMPILER if is_lowest else ()
    _run(*inside, python, "-m", "pytest", "-p", "no:cacheprovider", *without, *words)


def _interpreter(version: str) -> tuple[list[str], str]:
    """Return a prefix of command lines, and an interpreter that they can use."""
    name = f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    own = Path(sys.base_prefix, "bin", name)
    for candidate in (own, shutil.which(name), *pyenv.glob(f"versions/{version}.*/bin/{name}")):
        # The one on the path may be a shim of pyenv, for a version that is not selected.
        if (
            candidate
            and Path(candidate).exists()
            and not _fails(str(candidate), "-c", "import venv")
        ):
            return _for_all_users(str(candidate))
    if version not in RELEASES:
        raise LookupError(f"{name} is not on this machine, nor in a release of Debian")
    root = PLACE / f"root-{version}"
    if not (root / "usr" / "bin" / name).exists():
        shutil.rmtree(root, ignore_errors=True)
        debootstrap = ["debootstrap", "--variant=minbase", f"--include={name}-venv,{_PACKAGES}"]
        mirror = subprocess.check_output(ROOT / "packaging" / "mirror.sh", text=True).strip()
        _run(*debootstrap, RELEASES[version], str(root), mirror)
    script = f"mount --bind {root} {root}; cd {root}; "
    for path in _SHARED:
        make = "mkdir -p" if Path(path).is_dir() else "touch"
        script += f"{make} .{path}; mount --rbind {path} .{path}; "
    # Not chroot, in which Linux refuses to make user namespaces.
    script += f'pivot_root . mnt; umount -l /mnt; cd {ROOT}; exec "$@"'
    return [*_UNSHARED, "sh", "-ec", script, "sh"], name


def _for_all_users(interpreter: str) -> tuple[list[str], str]:
    """Return a prefix with which other users can run an interpreter, and the interpreter.

    Some tests do so, but root's home, where pyenv keeps its own, is closed: an overlay opens it.
    """
    home = Path.home()
    if os.geteuid() or home not in Path(interpreter).resolve().parents:
        return [], interpreter
    upper, work = PLACE / "home", PLACE / "work"
    for layer in (upper, work):
        layer.mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={home},upperdir={upper},workdir={work}"
    script = f'mount -t overlay -o {options} home {home}; exec "$@"'
    return [*_UNSHARED, "sh", "-ec", script, "sh"], interpreter


def _fails(*command: str) -> bool:
    return bool(subprocess.run(command, capture_output=True, check=False).returncode)


def _run(*command: str) -> None:
    subprocess.run(command, cwd=ROOT, check=True)


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


if __name__ == "__main__":
    sys.exit(main())
