"""Connections by the system's ssh, and the program at their other end.

One control connection per host is kept for a minute. When it is new, the host is asked once for its
program (``reach``): that of the same version on PATH, else a copy in the user's cache folder, whose
owner, mode and digest are checked, else one that is sent now. A standalone program sends itself.
Otherwise, and for another machine, it is a file of a release: the single-file program, or the
archive of the folder.

Scripts are run by ``sh``, but login shells read them first, even fish and csh: no single quotes,
backslashes, ``!`` or line breaks.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final

from pycrictl import __version__
from pycrictl.base.errors import ConfigError, NotFound, UsageError
from pycrictl.base.units import escape, quote
from pycrictl.hosts import session
from pycrictl.hosts.names import Host
from pycrictl.hosts.session import COMMAND_VARIABLE, ENTRY, HostError, Process

_NAME: Final = "pycrictl"
_RELEASES: Final = "https://github.com/pycrictl/pycrictl/releases"
_FILE: Final = re.compile(r"-linux-(\w+?)\.(?:bin|tar\.xz)$")
_PATH: Final = re.compile(r"/[\w./+@=,-]+", re.ASCII)
_ANSWER: Final = "pycrictl-answer"
_BASE: Final = 'umask 077; b="${XDG_CACHE_HOME:-$HOME/.cache}/pycrictl"; '
_CHECK: Final = (
    'own() { [ -O "$1" ] && [ -d "$1" ] && '
    'case $(ls -ld "$1") in drwx------*) : ;; *) false ;; esac; }; '
    'sum() { s=$(cd "$1" && find . -type f -o -type l | LC_ALL=C sort | xargs sha256sum'
    ' | sha256sum) && [ "${s%%%% *}" = "$d" ]; }; '
)
_LOCATE: Final = (
    f"{_BASE}{_CHECK}m=$(uname -m); case $(ldd --version 2>&1) in *musl*) m=$m-musl ;; esac; "
    "case $m in %(names)s *) n= d= ;; esac; "
    'p=$(command -v pycrictl) && case $("$p" --version </dev/null 2>/dev/null) in'
    f' "pycrictl version {__version__}") : ;; *) p= ;; esac; '
    'if [ -z "$p" ] && [ -n "$n" ] && own "$b/$n" && sum "$b/$n"; then p=$b/$n/pycrictl; fi; '
    f'echo; echo {_ANSWER} "$m" "$p"'
)
_SEND: Final = (
    f"umask 077; {_CHECK}%(base)s; d=%(digest)s; n=%(name)s; "
    't=$(mktemp -d "$b/.host-XXXXXX") || exit 1; fail() { rm -rf "$t"; rmdir "$b"; exit 1; }; '
    'trap "fail 2>/dev/null" HUP INT TERM PIPE; '
    'e=$(tar -xzf - -C "$t" 2>&1) || { echo "${e%%%%tar: Exit*}" >&2; fail 2>/dev/null; }; '
    'sum "$t" || { echo "it arrived damaged" >&2; fail 2>/dev/null; }; '
    '"$t/pycrictl" --version </dev/null >/dev/null || fail 2>/dev/null; '
    'rm -rf "$b/$n"; mv "$t" "$b/$n" || fail 2>/dev/null; '
    # Older copies go when a new one comes, unless they are younger than a day.
    'for o in "$b"/[0-9]*-*-* "$b"/.host-*; do [ "$o" = "$b/$n" ] || '
    'find "$o" -prune -type d -mtime +0 -exec rm -rf {} + ; done 2>/dev/null; '
    f'echo; echo {_ANSWER} "$b/$n"'
)
_CACHE: Final = (
    f'{_BASE}mkdir -p "$b" || exit 1; chmod 700 "$b"; own "$b" ||'
    ' { echo "$b is a link or another user owns it" >&2; exit 1; }'
)
_SCRATCH: Final = 'b=$(mktemp -d "${TMPDIR:-/tmp}/pycrictl-XXXXXX") || exit 1'
_TAKE_FILE: Final = (
    'umask 077; d=$(mktemp -d "${TMPDIR:-/tmp}/pycrictl-XXXXXX") && cat >"$d/sent" &&'
    f' echo && echo {_ANSWER} "$d"'
)


@dataclass
class Program:
    """A program that can be sent.

    Attributes:
        source: the single-file program, the archive of a folder, or that folder.
        machine: what it runs on, as ``uname -m`` prints it; empty for any.
    """

    source: Path
    machine: str

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of what ``sha256sum`` prints for its files in the order of their names.

        It is the same for a folder and its archive, and any host can compute it of its copy.
        """
        sums = {f"./{name}": hashlib.sha256(content).hexdigest() for name, content in self._files()}
        lines = "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))
        return hashlib.sha256(lines.encode()).hexdigest()

    @property
    def name(self) -> str:
        """The name of its folder in a host's cache."""
        return f"{__version__}-{self.machine or 'any'}-{self.digest[:32]}"

    @cached_property
    def packed(self) -> IO[bytes]:
        """What is sent: a tar archive by gzip."""
        import tarfile

        file = TemporaryFile()
        with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as tar:
            for name, content in self._files():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(content), 0o700 if name == _NAME else 0o600
                tar.addfile(entry, BytesIO(content))
        file.flush()
        return file

    def _files(self) -> Iterator[tuple[str, bytes]]:
        import tarfile

        try:
            if self.source.is_dir():
                for file in (self.source / _NAME, *(self.source / "lib").rglob("*")):
                    if file.is_file():
                        yield str(file.relative_to(self.source)), file.read_bytes()
            elif self.source.name.endswith(".tar.xz"):
                with tarfile.open(self.source, "r:xz") as tar:
                    for entry in tar:
                        name = entry.name.partition("/")[2]
                        if re.match(rf"{_NAME}$|lib/", name) and (data := tar.extractfile(entry)):
                            yield name, data.read()
            else:
                yield _NAME, self.source.read_bytes()
        except (OSError, tarfile.TarError, EOFError) as exc:
            text = f"cannot read {quote(str(self.source), 4096)}: {str(exc).lower()}"
            raise ConfigError(text) from None


class Ssh:
    """The system's ssh, with a private folder for control connections.

    Args:
        program: a file to send in place of the program that is known for a machine.
        keeps: whether the program stays in the host's cache.
        asks: whether ssh may ask questions on the terminal, as it does for a single host.
        note: told what takes time.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        program: str,
        *,
        timeout_s: float,
        sudo: bool,
        keeps: bool,
        asks: bool,
        note: Callable[[str], object],
    ) -> None:
        self._environ, self._program, self._lock = environ, program, threading.Lock()
        self._timeout_s, self._sudo, self._keeps, self._asks = timeout_s, sudo, keeps, asks
        self._note = note
        home = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or "~") / ".cache"
        self._downloads = Path(home).expanduser() / "pycrictl/programs"
        try:
            self._words = shlex.split(environ.get(COMMAND_VARIABLE) or "ssh")
        except ValueError as exc:
            raise UsageError(f"{COMMAND_VARIABLE}: {str(exc).lower()}") from None
        folder = Path(session.folder_of(environ))
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
        if (
            not stat.S_ISDIR(status.st_mode)
            or status.st_uid != os.geteuid()
            or status.st_mode & 0o077
        ):
            hint = "set XDG_RUNTIME_DIR to a folder of your own"
            raise ConfigError(f"{folder} is a link or open to other users", hint=hint)

    @cached_property
    def _programs(self) -> list[Program]:
        """The programs that this machine can send; the first of a machine counts."""
        if self._program:
            if not os.path.isfile(self._program):
                raise NotFound(f"there is no file {quote(self._program, 4096)}")
            file = Path(self._program)
            match = _FILE.search(file.name)
            return [Program(file, match[1] if match else "")]
        programs = []
        if getattr(sys, "frozen", False):
            file = Path(sys.executable)
            is_folder = (file.parent / "lib").is_dir()
            programs = [Program(file.parent if is_folder else file, platform.machine())]
        files = sorted(self._downloads.glob(f"pycrictl-{__version__}-linux-*"))
        matches = [(file, _FILE.search(file.name)) for file in files]
        return programs + [Program(file, match[1]) for file, match in matches if match]

    def reach(self, host: Host) -> session.Fields:
        """Return how commands are run there; sends the program if the host needs it."""
        socket = session.socket_of(self._environ, host.label, sudo=self._sudo)
        if self._keeps and (known := session.known_way(socket)):
            return known
        with self._lock:  # digests are computed once
            programs = {program.machine or "*": program for program in reversed(self._programs)}
            arms = [
                f"{m}) n={program.name} d={program.digest} ;; " for m, program in programs.items()
            ]
        timeout_s = None if self._asks else self._timeout_s
        script = _LOCATE % {"names": "".join(arms)}
        machine, *paths = self._answer(host, script, timeout_s=timeout_s)
        path = " ".join(paths)
        if not path or not self._keeps:
            path = f"{self._send(host, machine)}/pycrictl"
        if not _PATH.fullmatch(path):
            raise HostError(f"the program there has an unusable name: {escape(path)}")
        run = f"%(sudo)s{path} {ENTRY} %(start)s" + (' "$SSH_CONNECTION"' if self._sudo else "")
        if not self._keeps:
            folder = str(Path(path).parent.parent)
            run = run.replace(path, f"env XDG_CACHE_HOME={folder}/cache {path}")
            run = f"sh -c 'trap : HUP TERM PIPE; {run}; s=$?; rm -rf {folder}; exit $s'"
        way = {"socket": [socket], "ssh": self._options(host), "name": [host.name]}
        way |= {"command": [run]} | ({"sudo": [""]} if self._sudo else {})
        if self._keeps:
            with suppress(OSError):
                way["inode"] = [str(os.lstat(socket).st_ino)]
                Path(f"{socket}.way").write_bytes(session.pack(way))
        return way

    def put(self, host: Host, content: bytes) -> str:
        """Write ``sent`` into a private temporary folder there; return that."""
        with TemporaryFile() as file:
            file.write(content)
            file.seek(0)
            return self._answer(host, _TAKE_FILE, file)[0]

    def forward(self, host: Host, local: str, port: int, *, ends: bool = False) -> None:
        """Forward ``ADDRESS:PORT`` here to a port of the host's loopback address, or end that."""
        socket = session.socket_of(self._environ, host.label, sudo=self._sudo)
        words = ["ssh", "-F", "/dev/null", "-S", socket, "-O", "cancel" if ends else "forward"]
        words += ["-L", f"{local}:127.0.0.1:{port}", "kept"]
        with closing(Process(words)) as process:
            for _ in process.pieces():
                pass
        if process.close() and not ends:
            raise process.failure()

    def _options(self, host: Host) -> list[str]:
        options = {
            "ControlMaster": "auto",
            "ControlPath": session.socket_of(self._environ, host.label, sudo=self._sudo),
            "ControlPersist": "60",
            "ConnectTimeout": f"{max(round(self._timeout_s), 1)}",
            # The host ends a command if it hears nothing for some seconds; this end is patient, as
            # a slow network must not end a command.
            "ServerAliveInterval": "1",
            "ServerAliveCountMax": "15",
            "ClearAllForwardings": "yes",
            "RemoteCommand": "none",
        }
        words = [*self._words, "-a", "-x"]
        words += [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        words += ["-p", host.port] if host.port else []
        return words + (["-l", host.user] if host.user else [])

    def _answer(
        self,
        host: Host,
        script: str,
        stdin: IO[bytes] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> list[str]:
        """Return the words that a script answers."""
        asks = ["-o", f"BatchMode={'no' if self._asks else 'yes'}"]
        words = [*self._options(host), *asks, "-T", "--", host.name, f"sh -c '{script}'"]
        try:
            with closing(Process(words, stdin.fileno() if stdin else None)) as process:
                for _ in process.pieces(timeout_s):
                    pass
        except TimeoutError:
            raise HostError(f"no answer within {timeout_s:g} s") from None
        except OSError as exc:
            raise HostError(f"cannot run {words[0]}: {(exc.strerror or '').lower()}") from None
        output = process.before[process.stdout].decode(errors="replace")
        if (match := re.search(rf"(?m)^{_ANSWER} (.*)\n", output)) is None:
            raise process.failure()
        return match[1].split()

    def _send(self, host: Host, machine: str) -> str:
        """Send the program; return its folder."""
        program = next(
            (program for program in self._programs if program.machine in ("", machine)), None
        )
        if program is None and machine.endswith("-musl"):
            text = "the program to send needs glibc, and this host has musl"
            raise HostError(text, hint=f"install pycrictl {__version__} there, with pipx")
        if program is None:
            text = f"it has no pycrictl {__version__}, and there is none to send"
            file = f"pycrictl-{__version__}-linux-{escape(machine)}.bin"
            places = f"into {self._downloads}, or name it with --program"
            raise HostError(text, hint=f"put {file} of {_RELEASES} {places}")
        with self._lock:
            size = os.fstat(program.packed.fileno()).st_size
        self._note(f"sending the program to {host.label} ({size >> 20} MiB)")
        values = {"digest": program.digest, "name": program.name}
        values["base"] = _CACHE if self._keeps else _SCRATCH
        try:
            # Each host reads at a place of its own.
            with Path(f"/proc/self/fd/{program.packed.fileno()}").open("rb") as packed:
                return " ".join(self._answer(host, _SEND % values, packed))
        except HostError as exc:
            hint = "--no-keep puts it into $TMPDIR or /tmp"
            raise HostError(f"cannot put the program there: {exc.message}", hint=hint) from None
