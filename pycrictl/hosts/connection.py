"""Connections by the system's ssh, and the program at their other end.

One control connection per host is kept for a minute. When it is new, the host is asked once for its
program (``reach``): that of the same version on PATH, else a copy in the user's cache folder, whose
owner, mode and digest are checked, else one that is sent now. Scripts are run by ``sh``, but login
shells read them first, even fish and csh: no single quotes, backslashes, ``!`` or line breaks.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import select
import shlex
import stat
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from pycrictl import __version__
from pycrictl.errors import ConfigError, PycrictlError, UsageError
from pycrictl.hosts.frames import ENTRY, MARK
from pycrictl.hosts.names import Host
from pycrictl.hosts.program import Programs
from pycrictl.units import escape, shorten

COMMAND_VARIABLE: Final = "PYCRICTL_SSH_COMMAND"
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
    "{ %(unpack)s; } || fail; "
    'sum "$t" || { echo "it arrived damaged" >&2; fail; }; '
    '"$t/pycrictl" --version </dev/null >/dev/null || fail; %(place)s'
)
_MAKE: Final = (
    'mkdir -p "$b" || exit 1; chmod 700 "$b"; own "$b" ||'
    ' { echo "$b is a link or another user owns it" >&2; exit 1; }; '
    't=$(mktemp -d "$b/.host-XXXXXX") || exit 1; '
)
_PLACE: Final = (
    'if own "$b/$n" && sum "$b/$n"; then gone; else rm -rf "$b/$n"; mv "$t" "$b/$n" || fail; fi; '
    f"echo; echo {MARK} sent"
)
_MAKE_ONCE: Final = 't=$(mktemp -d "${TMPDIR:-/tmp}/pycrictl-XXXXXX") || exit 1; '
_PLACE_ONCE: Final = f'echo; echo {MARK} sent "$t"'
_PASSWORD: Final = 'IFS= read -r w; printf %s "$w" | sudo -S -v -p "" || exit 1; '
_HINTS: Final = (
    (
        "ermission denied",
        "where home is mounted noexec or read-only, --no-keep uses $TMPDIR or /tmp",
    ),
    ("ead-only file system", "--no-keep uses $TMPDIR or /tmp instead"),
    ("tar", "without tar there, --program FILE.bin sends a single file"),
    ("not found", "the program needs glibc, which the host may lack"),
)


class HostError(PycrictlError):
    """A host cannot be reached or used; the message does not name it."""

    reference = "host"


@dataclass
class Way:
    """How commands are run on a host.

    Attributes:
        where: ``path``, the name of a folder in the cache, or a folder that is used once.
        needs_password: sudo asks for one.
        is_kept: a control connection exists, so that ssh will ask no questions.
    """

    where: str
    needs_password: bool = False
    is_kept: bool = False


class Ssh:
    """The system's ssh, with a private folder for control connections.

    Args:
        asks: whether ssh may ask questions on the terminal, as it does for a single host.
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
        note: Callable[[str], object] = lambda _: None,
    ) -> None:
        try:
            self._words = shlex.split(environ.get(COMMAND_VARIABLE) or "ssh")
        except ValueError as exc:
            raise UsageError(f"{COMMAND_VARIABLE}: {str(exc).lower()}") from None
        self._folder = _private_folder(environ)
        self._programs, self._lock = programs, threading.Lock()
        self.timeout_s, self._sudo, self._keeps, self._asks = timeout_s, sudo, keeps, asks
        self._note = note

    def start(
        self, host: Host, script: str, *, is_kept: bool = False, stdin: IO[bytes] | int
    ) -> Process:
        """Run a script on a host; with a kept connection out of reach of the terminal's signals."""
        options = {
            "ControlMaster": "auto",
            "ControlPath": f"{self._control(host)}",
            "ControlPersist": f"{KEPT_S}",
            "ConnectTimeout": f"{max(round(self.timeout_s), 1)}",
            "ServerAliveInterval": "5",
            "ClearAllForwardings": "yes",
            "RemoteCommand": "none",
            "BatchMode": "yes" if is_kept or not self._asks else "no",
        }
        words = [*self._words, "-T", "-a", "-x"]
        words += [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        words += ["-p", host.port] if host.port else []
        words += ["-l", host.user] if host.user else []
        words += ["--", host.name, f"sh -c '{script}'"]
        try:
            process = subprocess.Popen(
                words,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                process_group=0 if is_kept or not self._asks else None,
            )
        except OSError as exc:
            reason = (exc.strerror or str(exc)).lower()
            raise ConfigError(f"cannot run {self._words[0]}: {reason}") from None
        return Process(process)

    def reach(self, host: Host) -> Way:
        """Return how to run commands there; sends the program if the host needs it."""
        record = self._control(host).with_suffix(".json")
        with suppress(OSError, ValueError, KeyError):
            known = json.loads(record.read_bytes())
            if known["socket"] == self._control(host).lstat().st_ino:
                return Way(known["where"], needs_password=known["password"], is_kept=True)
        with self._lock:
            names = self._programs().names
        arms = "".join(f"{m}) n={n} d={self._digest(m)} ;; " for m, n in names.items())
        sudo = "sudo" if self._sudo else '""'
        answer = self.start(
            host, _LOCATE % {"names": arms, "sudo": sudo}, stdin=subprocess.DEVNULL
        ).answer(None if self._asks else self.timeout_s)
        machine, where = (*answer, "", "")[:2]
        where, _, password = where.partition(",")
        if where in ("none", "") or (where != "path" and not self._keeps):
            where = self._send(host, machine)
        way = Way(where, needs_password=bool(password))
        with suppress(OSError):
            number = self._control(host).lstat().st_ino
            way.is_kept = True
            if not where.startswith("/"):
                known = {"socket": number, "where": where, "password": way.needs_password}
                record.write_text(json.dumps(known))
        return way

    def forget(self, host: Host) -> None:
        """Ask the host anew at the next ``reach``."""
        self._control(host).with_suffix(".json").unlink(missing_ok=True)

    def session(self, host: Host, way: Way, password: str | None) -> Process:
        """Start the host's end of a session."""
        folder = way.where if way.where.startswith("/") else f"$b/{way.where}"
        # With a password sudo needs the same shell as parent, by which it knows it again.
        run = ("" if password else "exec ") + ("sudo -n -- " if self._sudo else "")
        if way.where == "path":
            script = f'p=$(command -v pycrictl); {run}"$p" {ENTRY}'
        elif way.where.startswith("/"):
            run = run.removeprefix("exec ") + f'env XDG_CACHE_HOME="{folder}/cache" '
            script = f'trap : HUP TERM PIPE; {run}"{folder}/pycrictl" {ENTRY} "{folder}"; '
            script += f's=$?; rm -rf "{folder}"; exit $s'
        else:
            script = f'{_BASE}{_OWN}if own "{folder}"; then {run}"{folder}/pycrictl" {ENTRY} '
            script += f'"{folder}"; else echo; echo {MARK} gone; fi'
        if password is not None:
            script = _PASSWORD + script
        process = self.start(host, script, is_kept=way.is_kept, stdin=subprocess.PIPE)
        if password is not None:
            process.write(password.encode() + b"\n")
        return process

    def _digest(self, machine: str) -> str:
        program = self._programs().for_machine("" if machine == "*" else machine)
        assert program is not None
        return program.digest

    def _send(self, host: Host, machine: str) -> str:
        if (program := self._programs().for_machine(machine)) is None:
            hint = self._programs().needed(escape(machine))
            raise HostError(
                f"it has no pycrictl {__version__}, and there is none to send", hint=hint
            )
        with self._lock:
            packed = program.packed
        self._note(f"sending the program to {host.label} ({packed.stat().st_size >> 20} MiB)")
        unpack = 'tar -xzf - -C "$t"'
        if program.is_single:
            unpack = 'cat >"$t/pycrictl" && chmod 700 "$t/pycrictl"'
        script = _SEND % {
            "digest": program.digest,
            "name": program.name,
            "make": _MAKE if self._keeps else _MAKE_ONCE,
            "unpack": unpack,
            "place": _PLACE if self._keeps else _PLACE_ONCE,
        }
        with packed.open("rb") as stdin:
            process = self.start(host, script, stdin=stdin)
        try:
            answer = process.answer(None)
        except HostError as exc:
            advice = next((text for part, text in _HINTS if part in exc.message), None)
            raise HostError(f"cannot put the program there: {exc.message}", hint=advice) from None
        if self._keeps:
            return program.name
        if not re.fullmatch(r"/[\w./+-]+", folder := answer[-1]):
            raise HostError(
                f"its temporary folder has a name that cannot be used: {escape(folder)}"
            )
        return folder

    def _control(self, host: Host) -> Path:
        key = "\0".join((*self._words, str(self._sudo), *host[1:]))
        return self._folder / hashlib.sha256(key.encode()).hexdigest()[:24]


class Process:
    """A running ssh, and the end of what it wrote to its standard error."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self._process = process
        self.stdout = process.stdout.fileno()
        self._tail = b""
        self._drain = threading.Thread(target=self._read_errors, daemon=True)
        self._drain.start()

    def write(self, data: bytes) -> None:
        """Send bytes to the script; bytes for one that has ended are dropped."""
        assert self._process.stdin is not None
        view = memoryview(data)
        with suppress(OSError, ValueError):
            while view:
                view = view[os.write(self._process.stdin.fileno(), view) :]

    def mark(self, timeout_s: float | None) -> tuple[list[str], bytes]:
        """Return the words after the mark, and the bytes after its line."""
        seen = b""
        while (end := re.search(rb"(?m)^%s ([^\n]*)\n" % MARK.encode(), seen)) is None:
            if not select.select([self.stdout], [], [], timeout_s)[0]:
                self._process.kill()
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

    def close(self) -> int:
        """End the script if it still runs; return the exit status of ssh."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        try:
            return self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def last_words(self) -> str:
        """Return the last line on standard error, made harmless."""
        self._drain.join(1)
        lines = [line.strip() for line in self._tail.decode(errors="replace").splitlines()]
        return shorten(escape(next((line for line in reversed(lines) if line), "")), 300)

    def _failure(self, seen: bytes) -> HostError:
        status = self.close()
        if words := self.last_words():
            return HostError(words)
        lines = [
            line.strip() for line in seen.decode(errors="replace").splitlines() if line.strip()
        ]
        if lines:
            text = shorten(escape(lines[0]), 200)
            return HostError(f'it does not run what it is asked to, and answers "{text}"')
        return HostError(f"it does not run what it is asked to (ssh ended with status {status})")

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        with suppress(OSError, ValueError):
            while data := self._process.stderr.read(65536):
                self._tail = (self._tail + data)[-_TAIL_BYTES:]


def _private_folder(environ: Mapping[str, str]) -> Path:
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    folder = Path(runtime, "pycrictl") if runtime else Path(f"/tmp/pycrictl-ssh-{os.geteuid()}")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise ConfigError(
            f"{folder} is a link or open to other users",
            hint="set XDG_RUNTIME_DIR to a folder of your own",
        )
    return folder
