"""The standalone program: its requirements, its size, and where it unpacks itself."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from pycrictl import __version__
from tests.packaging import installing
from tests.packaging.building import ROOT, built, needs_old_c_library, unpack
from tests.packaging.roots import SUITES, Root, debian, emulator, unpacked

MIB = 1024 * 1024
PAGE_BYTES = {"x86_64": 4096, "aarch64": 65536}
"""The largest page size of kernels for each machine."""

FINDER = ROOT / "packaging" / "standalone" / "one_file.py"
PROBE = """
LEFT_OUT = ("encodings.", "pycrictl.cluster.")
def install(folder):
    finder = OneFile(folder)
    sys.meta_path.insert(-1, finder)
    import importlib, pathlib, ssl
    compiled = (file.relative_to(folder) for file in pathlib.Path(folder).rglob("*.so"))
    others = {".".join((*file.parent.parts, file.name.partition(".")[0])) for file in compiled}
    failed = {}
    for name in sorted(others.union(finder.index)):
        if name.endswith("__main__") or name.startswith(LEFT_OUT):
            continue
        try:
            importlib.import_module(name)
        except Exception as exc:
            failed[name] = f"{type(exc).__name__}: {exc}"
    context = ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(incoming, outgoing, server_hostname="it").do_handshake()
    except ssl.SSLWantReadError:
        print(outgoing.read()[0])
    print(len(finder.index))
    print(failed)
    sys.stdout.flush()
    os._exit(0)
"""
"""Replaces the program's start: imports all modules that need no extras of pycrictl, and begins a
TLS handshake (record type 22)."""


@pytest.fixture(scope="module", params=PAGE_BYTES)
def archive(request: pytest.FixtureRequest, released: Path) -> Path:
    return built(released, f"*-linux-{request.param}.tar.xz")


@pytest.fixture(scope="module")
def folder(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("standalone")
    unpack(archive, target)
    return target / archive.name.removesuffix(".tar.xz")


def test_it_needs_no_newer_c_library_and_loads_whatever_size_pages_have(folder: Path) -> None:
    files = [folder / "pycrictl", *folder.rglob("*.so*")]
    assert sum(map(needs_old_c_library, files)) > 5
    largest = PAGE_BYTES[folder.name.rpartition("-")[2]]
    for file in files:
        command = ["readelf", "--wide", "--program-headers", str(file)]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        aligned = re.findall(r"^ +LOAD .* 0x([0-9a-f]+)$", shown, re.MULTILINE)
        assert min(int(alignment, 16) for alignment in aligned) >= largest, file


def test_it_is_small(archive: Path, folder: Path) -> None:
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert size <= 50 * MIB
    assert archive.stat().st_size <= 16 * MIB


def test_all_of_its_modules_load(folder: Path) -> None:
    is_foreign = folder.name.endswith("-aarch64")
    finder = folder / "lib" / "one_file.py"  # comes before the compiled one
    finder.write_text(FINDER.read_text() + PROBE)
    try:
        done = subprocess.run(
            [*(emulator(unpacked("bullseye", "arm64")) if is_foreign else ()), folder / "pycrictl"],
            env={"LD_BIND_NOW": "1", "PYTHONPATH": "/nonexistent", "PYTHONHOME": "/nonexistent"},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        finder.unlink()
    assert done.returncode == 0, done.stderr
    record_type, count, failed = done.stdout.splitlines()
    assert record_type == "22"
    assert int(count) > 500
    assert failed == "{}"


@pytest.mark.parametrize("suite", SUITES)
def test_the_single_file_unpacks_itself_once(suite: str, released: Path, tmp_path: Path) -> None:
    with installing.single(released, tmp_path, suite) as program:
        cache = "/root/.cache/pycrictl"
        shown = ("-printf", "%m %u %P %T@\\n")
        for _ in range(2):
            assert program.run("--version").stdout == f"pycrictl version {__version__}\n"
            listing = program.run(cache, "-maxdepth", "1", *shown, program="/usr/bin/find").stdout
            modes = [line.split()[:2] for line in listing.splitlines()]
            assert modes == [["700", "root"], ["700", "root"]]
        again = program.run(cache, "-maxdepth", "1", *shown, program="/usr/bin/find").stdout
        assert again == listing
        assert program.run("/tmp", program="/bin/ls").stdout == ""


def test_another_user_does_not_run_what_root_unpacked(released: Path, tmp_path: Path) -> None:
    (file,) = released.glob("*-linux-x86_64.bin")
    with Root(tmp_path, debian("bookworm")) as root:
        root.put(file, "/bin/pycrictl")
        root.run("chmod", "755", "/bin/pycrictl")
        assert root.run("pycrictl", "--version").returncode == 0
        as_nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
        done = root.run(*as_nobody, "env", "HOME=/nonexistent", "pycrictl", "--version")
        assert (done.returncode, done.stderr) == (0, "")
        owner = root.run("stat", "-c", "%a %u", "/var/tmp/pycrictl-65534")
        assert owner.stdout == "700 65534\n"
        root.run("rm", "-r", "/var/tmp/pycrictl-65534")  # shared with the machine
