"""Connections by the system's ssh, and the program at their other end.

One control connection per host is kept for a minute. When it is new, the host is asked once for its
program (``reach``): that of the same version on PATH, else a copy in the user's cache folder, whose
owner, mode and digest are checked, else one that is sent now. Scripts are run by ``sh``, but login
shells read them first, even fish and csh: no single quotes, backslashes, ``!`` or line breaks.
"""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import signal
import stat
import threading
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from pycrictl import __version__
from pycrictl.errors import ConfigError, PycrictlError, UsageError
from pycrictl.hosts import early
from pycrictl.hosts.frames import ENTRY, MARK
from pycrictl.hosts.names import Host
from pycrictl.hosts.program import Program, Programs
from pycrictl.units import escape, shorten

KEPT_S: Final = 60
_TAIL_BYTES: Final = 4096
_ANSWER_BYTES: Final = 64 * 1024
"""How much a shell's start files may print before the answer."""

_BASE: Final = 'umask 077; b="${XDG_CACHE_HOME:-$HOME/.cache}/pycrictl"; '
_OWN: Final = (
    'own() { [ -O "$1" ] && [ -d "$1" ] && '
    'case $(ls -ld "$1") in drwx------*) : ;; *) false ;; esac; }; '
)
_SUM: Final = (
    'sum() { s=$(cd "$1" && find . -type f -o -type l | LC_ALL=C sort | xargs sha256sum'
    ' | sha256sum) && [ "${s%%%% *}" = "$d" ]; }; '
)
_LOCATE: Final = (
    f"{_BASE}{_OWN}{_SUM}m=$(uname -m); case $m in %(names)s *) n= d= ;; esac; "
    'p=$(command -v pycrictl) && case $("$p" --version </dev/null 2>/dev/null) in'
    f' "pycrictl version {__version__}") w=path ;; *) p= ;; esac; '
    'if [ -z "$p" ] && [ -n "$n" ] && own "$b/$n" && sum "$b/$n"; then w=$n; fi; '
    "[ -z %(sudo)s ] || sudo -n true </dev/null >/dev/null 2>&1 || w=$w,password; "
    f'echo; echo {MARK} "$m" "${{w:-none}}"'
)
_SEND: Final = (
    f"{_BASE}{_OWN}{_SUM}d=%(digest)s; n=%(name)s; %(make)s"
    'gone() { rm -rf "$t"; }; trap "gone; exit 1" HUP INT TERM PIPE; fail() { gone; exit 1; }; '
    '{ %(unpack)s; } || fail; sum "$t" || { echo "it arrived damaged" >&2; fail; }; '
    '"$t/pycrictl" --version </dev/null >/dev/null || fail; %(place)s'
)
_KEEP: Final = {
    "make": (
        'mkdir -p "$b" || exit 1; chmod 700 "$b"; own "$b" ||'
        ' { echo "$b is a link or another user owns it" >&2; exit 1; }; '
        't=$(mktemp -d "$b/.host-XXXXXX") || exit 1; '
    ),
    "place": (
        'if own "$b/$n" && sum "$b/$n"; then gone; else rm -rf "$b/$n"; mv "$t" "$b/$n" || fail; '
        f"fi; echo; echo {MARK} sent"
    ),
}
_USE_ONCE: Final = {
    "make": 't=$(mktemp -d "${TMPDIR:-/tmp}/pycrictl-XXXXXX") || exit 1; ',
    "place": f'echo; echo {MARK} sent "$t"',
}
_PASSWORD: Final = 'IFS= read -r w; printf %s "$w" | sudo -S -v -p "" || exit 1; '
_HINTS: Final = {
    "ermission denied": "if home is mounted noexec or read-only, --no-keep uses $TMPDIR or /tmp",
    "ead-only file system": "--no-keep uses $TMPDIR or /tmp instead",
    "tar": "without tar there, --program FILE.bin sends a single file",
    "not found": "the program needs glibc, which the host may lack",
}


class HostError(PycrictlError):
    """A host cannot be reached or used; the message does not name it."""

    reference = "host"


class Way(NamedTuple):
    """How commands are run on a host.

    Attributes:
        where: ``path``, the name of a folder in the cache, or a folder that is used once.
        needs_password: sudo asks for one.
    """

    where: str
    needs_password: bool


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
        self._command = environ.get(early.COMMAND_VARIABLE, "")
        try:
            self._words = shlex.split(self._command or "ssh")
        except ValueError as exc:
            raise UsageError(f"{early.COMMAND_VARIABLE}: {str(exc).lower()}") from None
        self._folder = _private(Path(early.folder_of(environ)))
        self._programs, self._lock = programs, threading.Lock()
        self.timeout_s, self._sudo, self._keeps, self._asks = timeout_s, sudo, keeps, asks
        self._note = note

    def reach(self, host: Host) -> Way:
        """Return how to run commands there; sends the program if the host needs it."""
        with suppress(OSError, ValueError, KeyError):
            known = json.loads(self._record(host).read_bytes())
            if known["socket"] == self._control(host).lstat().st_ino:
                return Way(known["where"], known["password"])
        with self._lock:  # digests are computed once
            names = {one.machine or "*": one for one in reversed(self._programs().known)}
            arms = [f"{m}) n={one.name} d={one.digest} ;; " for m, one in names.items()]
        values = {"names": "".join(arms), "sudo": "sudo" if self._sudo else '""'}
        with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a descriptor
            process = self._start(host, _LOCATE % values, nothing.fileno())
        answer = process.answer(None if self._asks else self.timeout_s)
        machine, where = (*answer, "", "")[:2]
        where, _, password = where.partition(",")
        if where in ("none", "") or (where != "path" and not self._keeps):
            where = self._send(host, machine)
        with suppress(OSError):
            known = {"where": where, "password": bool(password)}
            known["socket"] = self._control(host).lstat().st_ino
            if not where.startswith("/"):
                self._record(host).write_text(json.dumps(known))
        return Way(where, bool(password))

    def forget(self, host: Host) -> None:
        """Ask the host anew at the next ``reach``."""
        self._record(host).unlink(missing_ok=True)

    def session(self, host: Host, way: Way, password: str | None) -> Process:
        """Start the host's end of a session."""
        # With a password sudo needs the same shell as parent, by which it knows it again.
        run = ("" if password else "exec ") + ("sudo -n -- " if self._sudo else "")
        folder = way.where if way.where.startswith("/") else f"$b/{way.where}"
        if way.where == "path":
            script = f'p=$(command -v pycrictl); {run}"$p" {ENTRY}'
        elif folder == way.where:
            run = run.removeprefix("exec ") + f'env XDG_CACHE_HOME="{folder}/cache" '
            script = f'trap : HUP TERM PIPE; {run}"{folder}/pycrictl" {ENTRY} "{folder}"; '
            script += f's=$?; rm -rf "{folder}"; exit $s'
        else:
            script = f'{_BASE}{_OWN}if own "{folder}"; then {run}"{folder}/pycrictl" {ENTRY} '
            script += f'"{folder}"; else echo; echo {MARK} gone; fi'
        if password is None:
            return self._start(host, script, is_session=folder != way.where)
        process = self._start(host, _PASSWORD + script)
        process.write(password.encode() + b"\n")
        return process

    def _start(
        self, host: Host, script: str, stdin: int | None = None, *, is_session: bool = False
    ) -> Process:
        """Run a script on a host.

        Over a kept connection ssh asks nothing, so the terminal's signals need not reach it.
        """
        socket = self._control(host)
        is_apart = not self._asks or (stdin is None and socket.exists())
        options = {
            "ControlMaster": "auto",
            "ControlPath": f"{socket}",
            "ControlPersist": f"{KEPT_S}",
            "ConnectTimeout": f"{max(round(self.timeout_s), 1)}",
            "ServerAliveInterval": "5",
            "ClearAllForwardings": "yes",
            "RemoteCommand": "none",
            "BatchMode": "yes" if is_apart else "no",
        }
        words = [*self._words, "-T", "-a", "-x"]
        words += [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        words += (["-p", host.port] if host.port else []) + (["-l", host.user] if host.user else [])
        words += ["--", host.name, f"sh -c '{script}'"]
        if is_session and (begun := early.take(words)) is not None:
            return Process(begun)
        try:
            process = Process(early.Spawned(words, stdin, is_apart=is_apart))
        except OSError as exc:
            reason = (exc.strerror or str(exc)).lower()
            raise ConfigError(f"cannot run {self._words[0]}: {reason}") from None
        if is_session and is_apart and self._asks:
            with suppress(OSError):
                early.remember(str(self._folder), host.label, str(socket), words, self._command)
        return process

    def _send(self, host: Host, machine: str) -> str:
        """Send the program; return the name of its folder."""
        if (program := self._programs().for_machine(machine)) is None:
            hint = self._programs().needed(escape(machine))
            text = f"it has no pycrictl {__version__}, and there is none to send"
            raise HostError(text, hint=hint)
        with self._lock:
            packed = program.packed
        self._note(f"sending the program to {host.label} ({packed.stat().st_size >> 20} MiB)")
        with packed.open("rb") as file:
            process = self._start(host, self._sending(program), file.fileno())
        try:
            answer = process.answer(None)
        except HostError as exc:
            advice = next((text for part, text in _HINTS.items() if part in exc.message), None)
            raise HostError(f"cannot put the program there: {exc.message}", hint=advice) from None
        if not self._keeps and not re.fullmatch(r"/[\w./+-]+", answer[-1]):
            raise HostError(f"its temporary folder has an unusable name: {escape(answer[-1])}")
        return program.name if self._keeps else answer[-1]

    def _sending(self, program: Program) -> str:
        unpack = 'tar -xzf - -C "$t"'
        if program.is_single:
            unpack = 'cat >"$t/pycrictl" && chmod 700 "$t/pycrictl"'
        values = {"digest": program.digest, "name": program.name, "unpack": unpack}
        values |= _KEEP if self._keeps else _USE_ONCE
        return _SEND % values

    def _control(self, host: Host) -> Path:
        key = "\0".join((self._command, str(self._sudo), *host[1:]))
        return self._folder / f"{zlib.crc32(key.encode()):08x}-{len(key)}"

    def _record(self, host: Host) -> Path:
        return self._control(host).with_suffix(".json")


class Process:
    """A running ssh, and the end of what it wrote to its standard error."""

    def __init__(self, spawned: early.Spawned) -> None:
        self._spawned = spawned
        self._is_closed = False
        self._tail = b""
        self._drain = threading.Thread(target=self._read_errors, daemon=True)
        self._drain.start()
        self.stdout = spawned.stdout

    def write(self, data: bytes) -> None:
        """Send bytes to the script; bytes for one that has ended are dropped."""
        view = memoryview(data)
        with suppress(OSError):
            while view and not self._is_closed:
                view = view[os.write(self._spawned.stdin, view) :]

    def mark(self, timeout_s: float | None) -> tuple[list[str], bytes]:
        """Return the words after the mark, and the bytes after its line."""
        seen = b""
        while (end := re.search(rb"(?m)^%s ([^\n]*)\n" % MARK.encode(), seen)) is None:
            if not select.select([self.stdout], [], [], timeout_s)[0]:
                self.close()
                raise HostError(f"no answer within {timeout_s:g} s")
            data = os.read(self.stdout, 65536) if len(seen) < _ANSWER_BYTES else b""
            if not data:
                raise self._failure(seen)
            seen += data
        return end[1].decode(errors="replace").split(), seen[end.end() :]

    def answer(self, timeout_s: float | None) -> list[str]:
        """Return the words after the mark of a script that ends with it."""
        try:
            return self.mark(timeout_s)[0]
        finally:
            self.close()

    def close(self) -> None:
        """End the script if it still runs; ssh is not waited for, as it may be slow to leave."""
        self.kill()
        if not self._is_closed:
            self._is_closed = True
            for descriptor in {self._spawned.stdin, self.stdout} - {-1}:
                os.close(descriptor)
            os.waitpid(self._spawned.pid, os.WNOHANG)

    def kill(self) -> None:
        if not self._is_closed:
            with suppress(ProcessLookupError):
                os.kill(self._spawned.pid, signal.SIGTERM)

    def last_words(self) -> str:
        """Return the last line on standard error, made harmless."""
        self._drain.join(1)
        lines = [line.strip() for line in self._tail.decode(errors="replace").splitlines()]
        return shorten(escape(next((line for line in reversed(lines) if line), "")), 300)

    def _failure(self, seen: bytes) -> HostError:
        if words := self.last_words():
            return HostError(words)
        lines = [line.strip() for line in seen.decode(errors="replace").splitlines()]
        text = shorten(escape(next(filter(None, lines), "")), 200)
        answer = f', and answers "{text}"' if text else ""
        return HostError(f"it does not run what it is asked to{answer}")

    def _read_errors(self) -> None:
        with suppress(OSError):
            while data := os.read(self._spawned.stderr, 65536):
                self._tail = (self._tail + data)[-_TAIL_BYTES:]
        os.close(self._spawned.stderr)


def _private(folder: Path) -> Path:
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        hint = "set XDG_RUNTIME_DIR to a folder of your own"
        raise ConfigError(f"{folder} is a link or open to other users", hint=hint)
    return folder
