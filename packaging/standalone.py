"""Build the program with its own interpreter, for nodes without Python.

It is built in a folder, from which all other packages are made: an archive, one file that unpacks
itself once, Debian and RPM packages, and an image.
"""

from __future__ import annotations

import hashlib
import lzma
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import bundle
import process
import tree

_SOURCES: Final = Path(__file__).with_name("standalone")
_UNPACK: Final = Path(__file__).parent / "pyz" / "unpack.py"
_PYTHON: Final = Path("native/bin/python3.13")
_STDLIB: Final = Path("python/lib/python3.13")
_VERSION: Final = "cpython-313"
_PACKED: Final = "lib.tar.xz"

_UNUSED: Final = frozenset(
    "__phello__ _aix_support _distutils_system_mod _ios_support _osx_support _pydatetime"
    " _pydecimal _pyio _pyrepl antigravity bz2 curses dbm doctest ensurepip idlelib imaplib"
    " lib-dynload mailbox modulefinder msilib multiprocessing pickletools plistlib poplib pyclbr"
    " pydoc pydoc_data site-packages smtplib sqlite3 tabnanny test this tkinter tomllib trace"
    " turtle turtledemo unittest venv wave xml xmlrpc zipapp zoneinfo"
    " bdb cmd code codeop compileall configparser filecmp fileinput ftplib netrc"
    " nturl2path optparse pdb pty py_compile rlcompleter sched shelve statistics symtable"
    " webbrowser asyncio/proactor_events.py ctypes/_aix.py ctypes/macholib ctypes/wintypes.py"
    " email/_header_value_parser.py email/contentmanager.py email/headerregistry.py email/mime"
    " email/policy.py"
    " html/parser.py http/cookiejar.py _markupbase logging/config.py logging/handlers.py"
    " urllib/robotparser.py grpc/framework tqdm/autonotebook.py tqdm/notebook.py tqdm/auto.py"
    " tqdm/_tqdm_notebook.py wsgiref/validate.py"
    # Of several modules.
    " asyncio/windows_events.py asyncio/windows_utils.py concurrent/futures/process.py"
    " encodings/mbcs.py encodings/oem.py importlib/_bootstrap.py importlib/_bootstrap_external.py"
    # Of the bundle's modules. grpc makes no calls with TLS here.
    " google/protobuf/compiler google/protobuf/internal/json_format_benchmark.py"
    " google/protobuf/internal/message_benchmark.py google/protobuf/internal/testing_refleaks.py"
    " grpc/_cython/_credentials grpc/beta prometheus_client/aiohttp prometheus_client/django"
    " prometheus_client/openmetrics/parser.py prometheus_client/twisted shellingham/nt.py"
    " tqdm/_utils.py tqdm/completion.sh tqdm/contrib tqdm/dask.py tqdm/keras.py tqdm/rich.py"
    " tqdm/tk.py typer/_click/_winconsole.py"
    " typer/__main__.py typer/cli.py typer/testing.py urllib3/contrib"
    " urllib3/http2/connection.py websockets/asyncio websockets/auth.py websockets/cli.py"
    " websockets/legacy websockets/sync websockets/trio"
    # Of the image's modules.
    " aiohttp/pytest_plugin.py aiohttp/test_utils.py aiohttp/worker.py multidict/_testcapi"
    # isal is used for checksums only.
    " isal/igzip.py isal/igzip_threaded.py isal/isa-l"
    # Typer's output in colour.
    " typer/rich_utils.py".split()
)
"""Modules for other programs or systems only; Python's own by name, others by path."""

_UNUSED_PATTERNS: Final = (
    # Encodings of other systems; zip archives need cp437 for names.
    "encodings/cp[0-35-9]*.py",
    "encodings/mac_*.py",
    # tomli's modules in Python read a configuration as fast, loading included.
    "*__mypyc.*.so",
    "tomli/*.so",
)

_OF_AGENT: Final = (
    "email/_header_value_parser.py email/contentmanager.py email/headerregistry.py"
    " email/policy.py netrc.py".split()
)
"""Modules of Python in `_UNUSED` that the agent's dependencies import."""

_UNUSED_PREFIXES: Final = ("config-3", "_sysconfigdata")


@dataclass(frozen=True)
class Program:
    """The program in a folder, with the facts that packages need.

    Attributes:
        folder: `pycrictl` in it is the program, `lib` its modules; `share` has man pages and
            completions, `licenses` those of all that is in it.
        root: of the interpreter, made by `interpreter`.
        machine: as `uname -m` prints it.
        version: pycrictl's.
        time_s: timestamp of all files.
    """

    folder: Path
    root: Path
    machine: str
    version: str
    time_s: int

    @property
    def architecture(self) -> str:
        """The machine as Debian and images name it."""
        return bundle.MACHINES[self.machine]

    @property
    def stem(self) -> str:
        """Prefix of the names of files for one machine."""
        return f"pycrictl-{self.version}-linux-{self.machine}"


def build(program: Program, modules: Path, shared: Path) -> None:
    """Make the program's folder.

    Args:
        modules: made by `bundle`.
        shared: man pages and completions.

    Raises:
        subprocess.CalledProcessError: a tool failed; its output has the reason.
    """
    folder = program.folder
    stdlib = program.root / _STDLIB
    sources = folder / "sources"
    _copy(stdlib, sources, _of_python(stdlib))
    _copy(modules, sources, _of_bundle(modules, _suffixes(program.machine)))
    shutil.copytree(program.root / "programs/lib", sources, dirs_exist_ok=True)
    shutil.copy(_SOURCES / "one_file.py", sources)
    # Without their timestamps: dpkg and rpm would keep those older than the commit.
    shutil.copytree(program.root / "licenses", folder / "licenses", copy_function=shutil.copy)
    _finish(program, sources, modules, folder)
    shutil.copy(program.root / "programs/folder", folder / "pycrictl")
    shutil.copytree(shared, folder / "share")
    for page in (folder / "share/man").rglob("*.[1-9]"):
        page.with_name(f"{page.name}.gz").write_bytes(tree.packed(page.read_bytes()))
        page.unlink()
    _set_modes(folder)


def add_agent(program: Program, modules: Path, folder: Path) -> None:
    """Add the agent's dependencies to a copy of the program's folder.

    Args:
        modules: made by `bundle`.
        folder: the copy.

    Raises:
        subprocess.CalledProcessError: a tool failed; its output has the reason.
    """
    sources = folder / "sources"
    _copy(program.root / _STDLIB, sources, map(Path, _OF_AGENT))
    _copy(modules, sources, _of_bundle(modules, _suffixes(program.machine)))
    _finish(program, sources, modules, folder, "--files")
    _set_modes(folder)


def archive(program: Program, output: Path, _work: Path) -> None:
    """Write the archive of the folder."""
    path = output / f"{program.stem}.tar.xz"
    _archive(program.folder, path, name=program.stem, time_s=program.time_s)


def single(program: Program, output: Path, work: Path) -> None:
    """Write the single-file program: its launcher, and the archive from which it starts.

    Modules are in an archive inside that archive, since at each start the interpreter reads the
    names of all entries of the outer one.
    """
    packed, sources, start = work / _PACKED, work / "sources", work / "start"
    stdlib = program.root / _STDLIB
    sources.mkdir(parents=True)
    _archive(program.folder / "lib", packed, name=".", time_s=0)
    key = f"bin-{hashlib.sha256(packed.read_bytes()).hexdigest()[:32]}"
    own, _ = _suffixes(program.machine)
    facts = f"NAME = 'pycrictl'\nKEY = {key!r}\nSUFFIXES = {(own,)!r}\nPACKED = {_PACKED!r}\n"
    (sources / "facts.py").write_text(facts)
    shutil.copy(_UNPACK, sources)
    python, needs = str(program.root / _PYTHON), str(_SOURCES / "needs.py")
    needed = {*map(Path, process.output(python, "-I", needs, str(sources)).split())}
    _copy(stdlib, sources, (name for name in _of_python(stdlib) if name in needed))
    _compile(program.root, sources, start, "--files")
    path = output / f"{program.stem}.bin"
    with path.open("wb") as file:
        file.write((program.root / "programs/single").read_bytes())
        with zipfile.ZipFile(file, "w") as entries:
            for module in sorted(start.rglob("*.pyc")):
                _add(entries, str(module.relative_to(start)), module, zipfile.ZIP_DEFLATED)
            _add(entries, _PACKED, packed, zipfile.ZIP_STORED)
    path.chmod(0o755)


def _finish(program: Program, sources: Path, modules: Path, folder: Path, *options: str) -> None:
    """Move modules to the folder, compiled and stripped, with the license texts of a bundle."""
    compiled = sorted(sources.rglob("*.so*"))
    strip = f"{program.machine}-linux-gnu-strip"
    process.run(strip, "--strip-unneeded", *map(str, compiled))
    libraries = {file.name for file in (program.root / "programs/lib").iterdir()}
    for file in compiled:
        # Not every node has a library for C++.
        if libraries & {*process.output("patchelf", "--print-needed", str(file)).split()}:
            up = [".." for _ in file.relative_to(sources).parent.parts]
            process.run("patchelf", "--set-rpath", "/".join(["$ORIGIN", *up]), str(file))
    _compile(program.root, sources, folder / "lib", *options)
    shutil.rmtree(sources)
    for text in bundle.licenses(modules):
        target = folder / "licenses" / text.relative_to(modules).parts[0].split("-")[0]
        target.mkdir(exist_ok=True)
        shutil.copy(text, target)


def _set_modes(folder: Path) -> None:
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() or path == folder / "pycrictl" else 0o644)


def _compile(root: Path, sources: Path, target: Path, *options: str) -> None:
    words = ["-I", str(_SOURCES / "compile.py"), str(sources), str(target), *options]
    process.run(str(root / _PYTHON), *words, PYTHONHASHSEED="1")


def _suffixes(machine: str) -> tuple[str, tuple[str, ...]]:
    """Return the suffix of the interpreter's compiled modules, and those of others."""
    own, *others = sorted(bundle.suffixes(machine), key=lambda suffix: _VERSION not in suffix)
    return own, tuple(others)


def _archive(folder: Path, path: Path, *, name: str, time_s: int) -> None:
    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mtime = time_s
        return entry

    with lzma.open(path, "wb", preset=6) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as entries:
            entries.add(folder, name, filter=plain)  # tarfile sorts what is in a folder


def _add(entries: zipfile.ZipFile, name: str, file: Path, method: int) -> None:
    entry = zipfile.ZipInfo(name)  # its time is 1980
    entry.external_attr = 0o644 << 16
    entries.writestr(entry, file.read_bytes(), method)


def _copy(folder: Path, target: Path, names: Iterator[Path]) -> None:
    for name in names:
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / name, path)


def _of_python(stdlib: Path) -> Iterator[Path]:
    for file in sorted(stdlib.rglob("*.py")):
        name = file.relative_to(stdlib)
        top = name.parts[0].removesuffix(".py")
        if not (top in _UNUSED or top.startswith(_UNUSED_PREFIXES) or _is_unused(name)):
            yield name


def _of_bundle(modules: Path, suffixes: tuple[str, tuple[str, ...]]) -> Iterator[Path]:
    _, others = suffixes
    for file in bundle.files(modules):
        name = file.relative_to(modules)
        unused = name.parts[0].endswith(".dist-info") or _is_unused(name)
        if not unused and not name.name.endswith(others):
            yield name


def _is_unused(name: Path) -> bool:
    plain = name.with_name(name.name.partition(".cpython-")[0])
    places = (name, plain, *name.parents)
    return any(map(name.match, _UNUSED_PATTERNS)) or any(str(place) in _UNUSED for place in places)
