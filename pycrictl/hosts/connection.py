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
import json
import os
import platform
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final

from pycrictl import __version__
from pycrictl.base.errors import ConfigError, UsageError, reason_of
from pycrictl.base.units import escape, quote
from pycrictl.hosts import session
from pycrictl.hosts.names import Host
from pycrictl.hosts.session import COMMAND_VARIABLE, HostError, Process

_RELEASES: Final = "https://github.com/pycrictl/pycrictl/releases"
_OPTIONS: Final = (
    "-a -x -oControlMaster=auto -oControlPersist=60 -oClearAllForwardings=yes -oRemoteCommand=none"
    # The host ends a command if it hears nothing for some seconds; this end is patient, as a slow
    # network must not end a command.
    " -oServerAliveInterval=1 -oServerAliveCountMax=15"
).split()
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
_TAKE_FILE: Final = f'umask 077; {_SCRATCH}; cat >"$b/sent" && echo && echo {_ANSWER} "$b"'


@dataclass
class Program:
    """A program that can be sent.

    Attributes:
        source: the single-file program, the archive of a folder, or that folder.
        machine: what it runs on, as ``uname -m`` prints it.
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
        return f"{__version__}-{self.machine}-{self.digest[:32]}"

    @cached_property
    def packed(self) -> IO[bytes]:
        """What is sent: a tar archive by gzip."""
        import tarfile

        file = TemporaryFile()
        with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as tar:
            for name, content in self._files():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(content), 0o700 if name == "pycrictl" else 0o600
                tar.addfile(entry, BytesIO(content))
        file.flush()
        return file

    def _files(self) -> Iterator[tuple[str, bytes]]:
        import tarfile

        try:
            if self.source.is_dir():
                for file in (self.source / "pycrictl", *(self.source / "lib").rglob("*")):
                    if file.is_file():
                        yield str(file.relative_to(self.source)), file.read_bytes()
            elif self.source.name.endswith(".tar.xz"):
                with tarfile.open(self.source, "r:xz") as tar:
                    for entry in tar:
                        name = entry.name.partition("/")[2]
                        if re.match("pycrictl$|lib/", name) and (data := tar.extractfile(entry)):
                            yield name, data.read()
            else:
                yield "pycrictl", self.source.read_bytes()
        except (OSError, tarfile.TarError, EOFError) as exc:
            raise ConfigError(
                f"cannot read {quote(str(self.source), 4096)}: {reason_of(exc)}"
            ) from None


@dataclass
class Ssh:
    """The system's ssh, with a private folder for control connections.

    Attributes:
        program: a file to send in place of the program that is known for a machine.
        keeps: whether the program stays in the host's cache.
        asks: whether ssh may ask questions on the terminal, as it does for a single host.
        note: told what takes time.
    """

    environ: Mapping[str, str]
    program: str
    timeout_s: float
    sudo: bool
    keeps: bool
    asks: bool
    note: Callable[[str], object]

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        home = self.environ.get("XDG_CACHE_HOME") or Path(self.environ.get("HOME") or "~", ".cache")
        self._downloads = Path(home).expanduser() / "pycrictl/programs"
        try:
            self._words = shlex.split(self.environ.get(COMMAND_VARIABLE) or "ssh")
        except ValueError as exc:
            raise UsageError(f"{COMMAND_VARIABLE}: {str(exc).lower()}") from None
        folder = Path(session.socket_of(self.environ, "")).parent
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        if not session.is_private(str(folder)):
            hint = "set XDG_RUNTIME_DIR to a folder of your own"
            raise ConfigError(f"{folder} is a link or open to other users", hint=hint)

    @cached_property
    def _programs(self) -> dict[str, Program]:
        """What can be sent to machines, as ``uname -m`` prints them."""
        files = sorted(self._downloads.glob(f"pycrictl-{__version__}-linux-*"))
        if self.program:
            files = [Path(self.program)]
        matches = [(_FILE.search(file.name), file) for file in files]
        programs = {match[1]: Program(file, match[1]) for match, file in matches if match}
        if self.program and not programs:
            text = f"{quote(self.program, 4096)} is not a file of a release"
            raise ConfigError(text, hint="their names end with -linux-MACHINE.bin or .tar.xz")
        if not self.program and getattr(sys, "frozen", False):
            file, machine = Path(sys.executable), platform.machine()
            is_folder = (file.parent / "lib").is_dir()
            programs[machine] = Program(file.parent if is_folder else file, machine)
        return programs

    def reach(self, host: Host) -> dict[str, Any]:
        """Return how commands are run there; sends the program if the host needs it."""
        socket = session.socket_of(self.environ, host.label)
        way = session.known_way(socket) if self.keeps else None
        way = way or self._new_way(host, socket)
        return {**way, "sudo": True} if self.sudo else way

    def _new_way(self, host: Host, socket: str) -> dict[str, Any]:
        with self._lock:  # digests are computed once
            arms = [f"{p.machine}) n={p.name} d={p.digest} ;; " for p in self._programs.values()]
        timeout_s = None if self.asks else self.timeout_s
        machine, *path = self._answer(host, _LOCATE % {"names": "".join(arms)}, timeout_s=timeout_s)
        program = " ".join(path)
        if not path or not self.keeps:
            program = f"{self._send(host, machine)}/pycrictl"
        if not _PATH.fullmatch(program):
            raise HostError(f"the program there has an unusable name: {escape(program)}")
        way: dict[str, Any] = {"socket": socket, "ssh": self._options(host), "name": host.name}
        way["program"] = program
        if not self.keeps:
            scratch = str(Path(program).parent.parent)
            program = f"env XDG_CACHE_HOME={scratch}/cache {program}"
            return {**way, "program": program, "scratch": [scratch]}
        with suppress(OSError):
            way["inode"] = os.lstat(socket).st_ino
            Path(f"{socket}.way").write_text(json.dumps(way))
        return way

    def put(self, host: Host, content: bytes) -> str:
        """Write ``sent`` into a private temporary folder there; return that."""
        with TemporaryFile() as file:
            file.write(content)
            file.seek(0)
            return self._answer(host, _TAKE_FILE, file)[0]

    def _options(self, host: Host) -> list[str]:
        words = [*self._words, *_OPTIONS, f"-oConnectTimeout={max(round(self.timeout_s), 1)}"]
        words.append(f"-oControlPath={session.socket_of(self.environ, host.label)}")
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
        asks = f"-oBatchMode={'no' if self.asks else 'yes'}"
        words = [*self._options(host), asks, "-T", "--", host.name, f"sh -c '{script}'"]
        try:
            with closing(Process(words, stdin.fileno() if stdin else None)) as process:
                for _ in process.pieces(timeout_s):
                    pass
        except TimeoutError:
            raise HostError(f"no answer within {timeout_s:g} s") from None
        except OSError as exc:
            raise HostError(f"cannot run {words[0]}: {reason_of(exc)}") from None
        output = process.before[process.stdout].decode(errors="replace")
        if (match := re.search(rf"(?m)^{_ANSWER} (.*)\n", output)) is None:
            raise process.failure()
        return match[1].split()

    def _send(self, host: Host, machine: str) -> str:
        """Send the program; return its folder."""
        program = self._programs.get(machine)
        if program is None:
            text = f"it has no pycrictl {__version__}, and there is none to send"
            file = f"pycrictl-{__version__}-linux-{escape(machine)}.bin of {_RELEASES}"
            hint = f"put {file} into {self._downloads}, or name it with --program"
            if machine.endswith("-musl"):
                hint = "it has musl, for which there is no such file: install it there with pipx"
            raise HostError(text, hint=hint)
        with self._lock:
            packed = program.packed
        self.note(f"sending the program to {host.label} ({packed.tell() >> 20} MiB)")
        base = _CACHE if self.keeps else _SCRATCH
        script = _SEND % {"base": base, "digest": program.digest, "name": program.name}
        try:
            # Each host reads at a place of its own.
            with Path(f"/proc/self/fd/{packed.fileno()}").open("rb") as sent:
                return " ".join(self._answer(host, script, sent))
        except HostError as exc:
            hint = "--no-keep puts it into $TMPDIR or /tmp"
            raise HostError(f"cannot put the program there: {exc.message}", hint=hint) from None
