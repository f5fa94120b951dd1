"""The hosts of ``--host``, connections to them by the system's ssh, and the program there.

``USER@HOST:PORT`` and ``ssh://USER@HOST:PORT`` name one host, ``node[01-20]`` a range. ``@NAME`` is
a group: the hosts in ``~/.config/pycrictl/hosts/NAME``, or else in the file NAME, one per line,
with comments after ``#``.

One control connection per host is kept for a minute. When it is new, the host is asked once which
program it has (``reach``). The one on PATH is used if it has the same version, else a copy in the
user's cache folder, whose owner, mode and digest are checked; else one is sent now. A standalone
program sends itself to hosts of its machine type. In all other cases a file of a release is sent:
the single-file program, or the archive of a program that is a folder.
"""

from __future__ import annotations

import hashlib
import os
import platform
import queue
import re
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final

from pycrictl import __version__
from pycrictl.base.config import read_text
from pycrictl.base.errors import ConfigError, PycrictlError, UsageError, reason_of
from pycrictl.base.replacing import replacing
from pycrictl.base.units import escape, quote, quote_path
from pycrictl.hosts import session
from pycrictl.hosts.session import COMMAND_VARIABLE, HostError, Process, started
from pycrictl.show.records import End, Event, Events, received

_RELEASES: Final = "https://github.com/pycrictl/pycrictl/releases"
_OPTIONS: Final = (
    "-a -x -oControlMaster=auto -oControlPersist=60 -oClearAllForwardings=yes -oRemoteCommand=none"
    # The host ends a command if it receives nothing for some seconds; the client waits longer, as
    # a slow network must not end a command.
    " -oServerAliveInterval=1 -oServerAliveCountMax=15"
).split()
_FILE: Final = re.compile(r"-linux-(\w+?)\.(?:bin|tar\.xz)$")
_SCRIPT: Final = Path(__file__).with_name("first_contact.sh")

MAX_HOSTS: Final = 1000
_WORD: Final = re.compile(r"[^,\s]+")
_RANGE: Final = re.compile(r"\[(\d{1,9})-(\d{1,9})\]", re.ASCII)
_HOST: Final = re.compile(  # without names that ssh could take for options
    r"(?:(?P<user>[\w.@+-]+)@)?(?P<name>[A-Za-z0-9_][\w.-]*|\[[0-9A-Fa-f:.%\w]+\])"
    r"(?::(?P<port>\d{1,5}))?",
    re.ASCII,
)


def hosts_of(words: Iterable[str], environ: Mapping[str, str]) -> list[str]:
    """Return the hosts that the values of ``--host`` name, each once, in their order.

    Tables and messages name them as they were typed, without ``ssh://``.
    """
    home = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or "~") / ".config"
    groups = Path(home).expanduser() / "pycrictl/hosts"
    hosts: dict[str, None] = {}
    for word in _WORD.findall(" ".join(words)):
        names = _WORD.findall(_content(word[1:], groups)) if word.startswith("@") else [word]
        for host in (host for name in names for host in _range(name)):
            ssh_words(host)  # one invalid host is an error before any is used
            hosts[host] = None
            if len(hosts) > MAX_HOSTS:
                raise UsageError(f"more than {MAX_HOSTS} hosts are named")
    if not hosts:
        raise UsageError("no host is named", hint="is a variable not set, or a file empty?")
    return [*hosts]


def ssh_words(host: str) -> list[str]:
    """Return ssh's arguments for a host, with ``--`` before its name; UsageError if invalid."""
    match = _HOST.fullmatch(host)
    if match is None or int(match["port"] or 1) not in range(1, 65536):
        raise UsageError(f"{quote(host)} is not a host", hint="write [USER@]HOST[:PORT]")
    port = ["-p", match["port"]] if match["port"] else []
    user = ["-l", match["user"]] if match["user"] else []
    return [*port, *user, "--", match["name"].strip("[]")]


def _content(name: str, groups: Path) -> str:
    """Return the hosts of a group or file, without comments."""
    path = groups / name if name and (groups / name).is_file() else name
    try:
        return re.sub("#.*", "", read_text(str(path)))
    except (OSError, PycrictlError) as exc:
        reason, hint = reason_of(exc), f"groups are files in {groups}"
        raise ConfigError(f"cannot read {quote_path(name)}: {reason}", hint=hint) from None


def _range(word: str) -> Iterator[str]:
    """Yield the hosts of ``node[01-20]``, with as many digits as typed, or a single host."""
    if (match := _RANGE.search(word)) is None:
        yield word.removeprefix("ssh://").rstrip("/")
        return
    first, last = int(match[1]), int(match[2])
    if not first <= last < first + MAX_HOSTS:
        raise UsageError(f"{quote(word)} is not a range", hint="write node[01-20]")
    for number in range(first, last + 1):
        text = str(number).zfill(len(match[1]))
        yield from _range(f"{word[: match.start()]}{text}{word[match.end() :]}")


@dataclass
class Program:
    """A program that can be sent.

    Attributes:
        source: the single-file program, the folder of the program, or an archive of that folder.
        machine: the machine type that it runs on, as ``uname -m`` prints it.
    """

    source: Path
    machine: str

    @cached_property
    def name(self) -> str:
        """The name of its folder in a host's cache, with a digest that a host can compute.

        The digest is the SHA-256 of what ``sha256sum`` prints for the files in the order of their
        names, and the same for a folder and its archive.
        """
        sums = {f"./{name}": hashlib.sha256(content).hexdigest() for name, content in self._files()}
        lines = "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))
        return f"{__version__}-{self.machine}-{hashlib.sha256(lines.encode()).hexdigest()}"

    @cached_property
    def packed(self) -> IO[bytes]:
        """What is sent: a tar archive, compressed by gzip."""
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
            text = f"cannot read {quote_path(str(self.source))}: {reason_of(exc)}"
            raise ConfigError(text) from None


@dataclass
class Ssh:
    """The system's ssh, with a private folder for control connections.

    Attributes:
        program: the file to send, as ``--program`` names it; if empty, the one for the host's
            machine type is chosen: this program if it is standalone, or a file of the release.
        keeps: whether the program stays in the host's cache.
        asks: whether ssh may ask questions on the terminal, as it does for a single host.
        note: called with a text before something that takes time.
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
        folder = Path(session.control_socket(self.environ, "")).parent
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        if not session.is_private(str(folder)):
            hint = "set XDG_RUNTIME_DIR to a folder of your own"
            raise ConfigError(f"{folder} is a link or open to other users", hint=hint)

    @cached_property
    def _programs(self) -> dict[str, Program]:
        """The programs that can be sent, by machine type, as ``uname -m`` prints it."""
        downloads = sorted(self._downloads.glob(f"pycrictl-{__version__}-linux-*"))
        files = [Path(self.program)] if self.program else downloads
        matches = [(_FILE.search(file.name), file) for file in files]
        programs = {match[1]: Program(file, match[1]) for match, file in matches if match}
        if self.program and not programs:
            text = f"{quote_path(self.program)} is not a release file"
            raise ConfigError(text, hint="release files end with -linux-MACHINE.bin or .tar.xz")
        if not self.program and getattr(sys, "frozen", False):
            file, machine = Path(sys.executable), platform.machine()
            is_folder = (file.parent / "lib").is_dir()
            programs[machine] = Program(file.parent if is_folder else file, machine)
        return programs

    def reach(self, host: str) -> session.Fields:
        """Return how commands are run on a host; send the program if the host needs it."""
        socket = session.control_socket(self.environ, host)
        way = (self.keeps and session.known_way(socket)) or self._new_way(host, socket)
        return {**way, "sudo": [""]} if self.sudo else way

    def _new_way(self, host: str, socket: str) -> session.Fields:
        with self._lock:  # digests are computed once
            programs = " ".join(program.name for program in self._programs.values())
        answer = self._answer(host, "find", version=__version__, programs=programs)
        machine, _, program = answer.partition(" ")
        if not program or not self.keeps:
            program = f"{self._send(host, machine)}/pycrictl"
        if not re.fullmatch(r"/[\w./+@=,-]+", program, re.ASCII):
            raise HostError(f"its program's path has unsupported characters: {escape(program)}")
        way = {"socket": [socket], "ssh": self._ssh(host), "host": ssh_words(host)}
        if not self.keeps:
            scratch = str(Path(program).parent.parent.parent)
            program = f"env XDG_CACHE_HOME={scratch} {program}"
            return {**way, "program": [program], "scratch": [scratch]}
        way["program"] = [program]
        with suppress(OSError), replacing(f"{socket}.way") as file:
            file.write(session.pack(way))
        return way

    def put(self, host: str, content: bytes) -> str:
        """Write the file ``sent`` into a private temporary folder there; return the folder."""
        with TemporaryFile() as file:
            file.write(content)
            file.seek(0)
            return self._answer(host, "put", file)

    def _ssh(self, host: str) -> list[str]:
        socket, wait_s = session.control_socket(self.environ, host), max(round(self.timeout_s), 1)
        return [*self._words, *_OPTIONS, f"-oConnectTimeout={wait_s}", f"-oControlPath={socket}"]

    def _answer(self, host: str, action: str, stdin: IO[bytes] | None = None, **texts: str) -> str:
        """Return what the script for first contact answers, with its variables set to texts."""
        lines = [line for line in _SCRIPT.read_text().splitlines() if not line.startswith("#")]
        values = [f'{name}="{text}";' for name, text in texts.items()]
        script = " ".join([f"action={action};", *values, *map(str.strip, lines)])
        timeout_s = self.timeout_s if action == "find" and not self.asks else None
        asks = f"-oBatchMode={'no' if self.asks else 'yes'}"
        words = [*self._ssh(host), asks, "-T", *ssh_words(host), f"sh -c '{script}'"]
        try:
            with closing(Process(words, stdin.fileno() if stdin else None, {})) as process:
                for _ in process.pieces(timeout_s):
                    pass
        except TimeoutError:
            raise HostError(f"no answer within {timeout_s:g} s") from None
        except OSError as exc:
            raise HostError(f"cannot run {words[0]}: {reason_of(exc)}") from None
        output = process.before[process.stdout].decode(errors="replace")
        if (match := re.search(r"(?m)^pycrictl-answer (.*)\n", output)) is None:
            raise process.failure()
        return match[1].strip()

    def _send(self, host: str, machine: str) -> str:
        """Send the program; return its folder."""
        program = self._programs.get(machine)
        if program is None:
            text = f"it has no pycrictl {__version__}, and none for {escape(machine)} can be sent"
            file = f"pycrictl-{__version__}-linux-{escape(machine)}.bin of {_RELEASES}"
            hint = f"put {file} into {self._downloads}, or name it with --program"
            if machine.endswith("-musl"):
                hint = "no release file runs with musl: install pycrictl there with pipx"
            raise HostError(text, hint=hint)
        with self._lock:
            packed = program.packed
        self.note(f"sending the program to {host} ({packed.tell() >> 20} MiB)")
        keeps = "1" * self.keeps
        try:
            # Opened again, so that each host reads from the start.
            with Path(f"/proc/self/fd/{packed.fileno()}").open("rb") as sent:
                return self._answer(host, "send", sent, name=program.name, keeps=keeps)
        except HostError as exc:
            hint = "--no-keep puts it into $TMPDIR or /tmp"
            raise HostError(f"cannot put the program there: {exc.message}", hint=hint) from None

    def events(
        self,
        hosts: Sequence[str],
        start: Callable[[str], session.Fields],
        most: int,
        *,
        stdin: str = os.devnull,
        retry_s: float | None = None,
    ) -> Events:
        """Run a command on several hosts, each in a thread, until all have ended.

        The caller's thread writes all output, so that signals interrupt even a blocked write.

        Args:
            start: returns the start message for a host, with the secret word for records.
            most: how many hosts run the command at the same time.
            stdin: a file that every host reads.
            retry_s: seconds after which an ended command is started again; None for never.
        """
        # Bounded, so that no host is read faster than it is shown.
        arrived: queue.Queue[tuple[str, Event]] = queue.Queue(64)

        def run(host: str) -> None:
            while True:
                end = End(1, "internal error")
                try:
                    way, told = self.reach(host), start(host)
                    with Path(stdin).open("rb") as file:  # each host reads from the start
                        process = started(way, told, file.fileno())
                    with closing(process):
                        for event in received(process.pieces(), told["records"][0].encode()):
                            arrived.put((host, event))
                    end = End(process.result(), "")
                except (HostError, PycrictlError) as exc:
                    end = End(1, exc.message + (f" ({exc.hint})" if exc.hint else ""))
                finally:
                    arrived.put((host, end))
                if retry_s is None:
                    return
                time.sleep(retry_s)

        pool = ThreadPoolExecutor(most)
        for host in hosts:
            pool.submit(run, host)
        running = len(hosts)
        while running:
            event: tuple[str, Event] | None = None
            with suppress(queue.Empty):
                event = arrived.get(timeout=0.1)
                running -= isinstance(event[1], End) and retry_s is None
            yield event
