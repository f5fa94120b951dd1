"""Connections by the system's ssh, and the program at their other end.

One control connection per host is kept for a minute. When it is new, the host is asked once for its
program (``reach``): that of the same version on PATH, else a copy in the user's cache folder, whose
owner, mode and digest are checked, else one that is sent now. Scripts are run by ``sh``, but login
shells read them first, even fish and csh: no single quotes, backslashes, ``!`` or line breaks.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import threading
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from pycrictl import __version__
from pycrictl.base.errors import ConfigError, PycrictlError, UsageError
from pycrictl.base.units import escape, shorten
from pycrictl.hosts import session
from pycrictl.hosts.names import Host
from pycrictl.hosts.session import COMMAND_VARIABLE, ENTRY, LOST_STATUS, End, Process

if TYPE_CHECKING:
    from pycrictl.hosts.program import Programs

KEPT_S: Final = 60
LOST_S: Final = 15
"""How long the client waits for a sign of life: a slow network must not end a command."""

_ANSWER: Final = "pycrictl-answer"
_PATH: Final = re.compile(r"/[\w./+@=,-]+", re.ASCII)
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
    'if [ -z "$p" ] && [ -n "$n" ] && own "$b/$n" && sum "$b/$n"; then p=$b/$n/pycrictl; fi; a=no; '
    "[ -z %(sudo)s ] || sudo -n true </dev/null >/dev/null 2>&1 || a=yes; "
    f'echo; echo {_ANSWER} "$m" "$a" "$p"'
)
_SEND: Final = (
    f"umask 077; {_CHECK}%(base)s; d=%(digest)s; n=%(name)s; "
    't=$(mktemp -d "$b/.host-XXXXXX") || exit 1; fail() { rm -rf "$t"; rmdir "$b"; exit 1; }; '
    'trap "fail 2>/dev/null" HUP INT TERM PIPE; { %(unpack)s; } || fail 2>/dev/null; '
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
_TAKE: Final = f'umask 077; f=$(mktemp) && cat >"$f" && echo && echo {_ANSWER} "$f"'


class HostError(PycrictlError):
    """A host cannot be reached or used; the message does not name it."""


class Ssh:
    """The system's ssh, with a private folder for control connections.

    Args:
        keeps: whether the program stays in the host's cache.
        asks: whether ssh may ask questions on the terminal, as it does for a single host.
        note: told what takes time.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        programs: Callable[[], Programs],
        *,
        timeout_s: float,
        sudo: bool,
        keeps: bool,
        asks: bool,
        note: Callable[[str], object],
    ) -> None:
        self._environ = environ
        try:
            self._words = shlex.split(environ.get(COMMAND_VARIABLE) or "ssh")
        except ValueError as exc:
            raise UsageError(f"{COMMAND_VARIABLE}: {str(exc).lower()}") from None
        _make_private(Path(session.folder_of(environ)))
        self._programs, self._lock = programs, threading.Lock()
        self._timeout_s, self._sudo, self._keeps, self._asks = timeout_s, sudo, keeps, asks
        self._note = note

    def socket(self, host: Host) -> str:
        return session.socket_of(self._environ, host.label, sudo=self._sudo)

    def kept(self, host: Host) -> session.Fields | None:
        """Return how commands are run there (``session.known_way``), if that is known."""
        return session.known_way(self.socket(host)) if self._keeps else None

    def reach(self, host: Host) -> session.Fields:
        """Return how commands are run there; sends the program if the host needs it."""
        if way := self.kept(host):
            return way
        with self._lock:  # digests are computed once
            names = {one.machine or "*": one for one in reversed(self._programs().known)}
            arms = [f"{m}) n={one.name} d={one.digest} ;; " for m, one in names.items()]
        values = {"names": "".join(arms), "sudo": "sudo" if self._sudo else '""'}
        machine, asks, *paths = self._answer(
            host, _LOCATE % values, timeout_s=None if self._asks else self._timeout_s
        )
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
        way = {"ssh": self._options(host), "name": [host.name], "command": [run]}
        way |= {"sudo": [""]} if self._sudo else {}
        way |= {"asks": [""]} if asks == "yes" else {}
        if self._keeps:
            with suppress(OSError):
                way["inode"] = [str(os.lstat(self.socket(host)).st_ino)]
                Path(f"{self.socket(host)}.way").write_bytes(session.pack(way))
        return way

    def status(self, host: Host, end: End) -> int:
        """Return the exit status of a command; HostError if it has not begun, or was cut off."""
        if not end.is_begun:
            Path(f"{self.socket(host)}.way").unlink(missing_ok=True)
            raise failure(end)
        is_lost = end.status == LOST_STATUS and (
            not self._keeps or session.is_lost(self.socket(host))
        )
        if is_lost:
            raise HostError("the connection has ended")
        return end.status

    def put(self, host: Host, content: bytes) -> str:
        """Write what is small to a private temporary file there; return its path."""
        from tempfile import TemporaryFile  # noqa: PLC0415 - takes time to load

        with TemporaryFile() as file:
            file.write(content)
            file.seek(0)
            return self._answer(host, _TAKE, file=file, timeout_s=None)[0]

    def forward(self, host: Host, local: str, port: int, *, ends: bool = False) -> None:
        """Forward ``ADDRESS:PORT`` here to a port of the host's loopback address, or end that."""
        words = ["ssh", "-F", "/dev/null", "-S", self.socket(host)]
        words += ["-O", "cancel" if ends else "forward", "-L", f"{local}:127.0.0.1:{port}", "kept"]
        with closing(Process(words, is_bound=False)) as process:
            for _ in process.pieces():
                pass
        if process.end.status and not ends:
            raise failure(process.end)

    def _options(self, host: Host) -> list[str]:
        options = {
            "ControlMaster": "auto",
            "ControlPath": self.socket(host),
            "ControlPersist": f"{KEPT_S}",
            "ConnectTimeout": f"{max(round(self._timeout_s), 1)}",
            # The host ends a command if it hears nothing for some seconds.
            "ServerAliveInterval": "1",
            "ServerAliveCountMax": f"{LOST_S}",
            "ClearAllForwardings": "yes",
            "RemoteCommand": "none",
        }
        words = [*self._words, "-a", "-x"]
        words += [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        words += ["-p", host.port] if host.port else []
        return words + (["-l", host.user] if host.user else [])

    def _answer(
        self, host: Host, script: str, *, file: IO[bytes] | None = None, timeout_s: float | None
    ) -> list[str]:
        """Return the words that a script, which reads ``file``, answers."""
        asks = ["-o", f"BatchMode={'no' if self._asks else 'yes'}"]
        words = [*self._options(host), *asks, "-T", "--", host.name, f"sh -c '{script}'"]
        stdin = file.fileno() if file else None
        try:
            with closing(Process(words, stdin, is_bound=False)) as process:
                for _ in process.pieces(timeout_s):
                    pass
        except TimeoutError:
            raise HostError(f"no answer within {timeout_s:g} s") from None
        except OSError as exc:
            raise HostError(f"cannot run {words[0]}: {(exc.strerror or '').lower()}") from None
        match = re.search(rf"(?m)^{_ANSWER} (.*)\n", process.answer.decode(errors="replace"))
        if match is None:
            raise failure(process.end)
        return match[1].split()

    def _send(self, host: Host, machine: str) -> str:
        """Send the program; return its folder."""
        if (program := self._programs().for_machine(machine)) is None:
            if machine.endswith("-musl"):
                text = "the program to send needs glibc, and this host has musl"
                raise HostError(text, hint=f"install pycrictl {__version__} there, with pipx")
            hint = self._programs().needed(escape(machine))
            text = f"it has no pycrictl {__version__}, and there is none to send"
            raise HostError(text, hint=hint)
        with self._lock:
            packed = program.packed
        self._note(f"sending the program to {host.label} ({packed.stat().st_size >> 20} MiB)")
        unpack = 'tar -xzf - -C "$t"'
        if program.is_single:
            unpack = 'cat >"$t/pycrictl" && chmod 700 "$t/pycrictl"'
        values = {"digest": program.digest, "name": program.name, "unpack": unpack}
        values["base"] = _CACHE if self._keeps else _SCRATCH
        try:
            with packed.open("rb") as file:
                return " ".join(self._answer(host, _SEND % values, file=file, timeout_s=None))
        except HostError as exc:
            hint = "--no-keep puts it into $TMPDIR or /tmp, --program FILE.bin sends a single file"
            raise HostError(f"cannot put the program there: {exc.message}", hint=hint) from None


def failure(end: End) -> HostError:
    """Return why a command has not begun, from what was printed instead."""
    lines = [line.strip() for line in end.text.decode(errors="replace").splitlines()]
    text = shorten(escape(next(filter(None, reversed(lines)), "")), 300)
    if text and end.is_error:
        return HostError(text)
    answer = f'; it answers "{text}"' if text else ""
    return HostError(f"it does not run the requested command{answer}")


def _make_private(folder: Path) -> None:
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        hint = "set XDG_RUNTIME_DIR to a folder of your own"
        raise ConfigError(f"{folder} is a link or open to other users", hint=hint)
