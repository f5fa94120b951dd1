"""The method ``exec``: ``tar`` in the container, where no better method can be used.

An archive from the container is untrusted, as is all output of its programs. One sent to it is
unpacked in place, not atomically: on failure, files that have arrived stay, and the error says
where. Commands are lists of words, and none runs in a shell.

No archive from outside is passed on unchanged: two programs may parse the same bytes differently,
and the archive that is unpacked must be the one that was checked.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO

from pycrictl.base.environ import write_pieces
from pycrictl.base.errors import (
    CopyError,
    NotFound,
    PycrictlError,
    RuntimeFault,
    StreamError,
    Unimplemented,
)
from pycrictl.base.units import plural, quote
from pycrictl.copy.archive.archives import Archive, Outgoing
from pycrictl.copy.archive.arrival import nothing_copied
from pycrictl.copy.archive.pack import report_total
from pycrictl.copy.rules import policy
from pycrictl.copy.rules.outcome import Summary, unkept_note
from pycrictl.copy.rules.policy import Judge, Rules, Skipped
from pycrictl.copy.rules.spec import (
    Existing,
    Meeting,
    SourceKind,
    has_wildcards,
    meet,
    place,
    take_apart,
)
from pycrictl.copy.tree.content import CHUNK_BYTES
from pycrictl.copy.tree.rootfs import (
    KERNEL_FILE_SYSTEMS,
    KernelFileSystem,
    held,
    kind_of_mode,
    to_error,
)
from pycrictl.copy.tree.walk import OnSkip, Watch
from pycrictl.runtime.cri import sessions
from pycrictl.streams.loop import run_in_loop
from pycrictl.streams.pump import Ends, Input, Output
from pycrictl.streams.remote_command import run_command
from pycrictl.streams.wire.command import ExitReported, Streams
from pycrictl.streams.wire.tar.header import (
    END_OF_ARCHIVE,
    NS_PER_S,
    Entry,
    EntryType,
    encode_entry,
    padding_after,
)
from pycrictl.streams.wire.tar.reader import DataReceived, EntryFinished, EntryStarted, read

if TYPE_CHECKING:
    from pycrictl.runtime.cri.calls.client import CriClient
    from pycrictl.streams.target import TlsFiles

log = logging.getLogger("pycrictl.copy")

_INCOMPLETE: Final = "the copy is incomplete"
_CHANGED: Final = b"file changed as we read it"
_USE_NODE: Final = "--method node can do it"

_MAX_STDERR_BYTES: Final = 64 * 1024
_MISSING: Final = ("executable file not found", "no such file or directory")
_MISSING_STATUS: Final = (126, 127)
"""The exit statuses that mean that a program cannot be run."""

_ERRNOS: Final = {os.strerror(number).lower(): number for number in errno.errorcode}
_ERRNOS["resource busy"] = errno.EBUSY  # musl's wording


class CommandResult(NamedTuple):
    status: int
    stdout: bytes
    stderr: bytes

    def failure(self, action: str, path: bytes) -> CopyError:
        """Return an error that quotes stderr: ``cannot <action> "<path>": <reason>``."""
        lines = map(str.strip, self.stderr.decode(errors="replace").splitlines())
        said = next(filter(None, lines), f"it ended with status {self.status}")
        reason = said.rpartition(": ")[2]
        if (number := _ERRNOS.get(reason.lower())) is not None:
            return to_error(OSError(number, reason), action, path)
        return CopyError(f"cannot {action} {quote(os.fsdecode(path))}: {quote(said, limit=200)}")


class _Kept(NamedTuple):
    """Keeps the start of an output."""

    kept: bytearray

    async def write(self, *pieces: bytes | memoryview) -> None:
        for piece in pieces:
            self.kept.extend(piece[: _MAX_STDERR_BYTES - len(self.kept)])


@dataclass(eq=False)
class Remote:
    """Runs programs in a container.

    Attributes:
        limit_s: the timeout of programs that only query something.
        silence_s: how long the server may be silent once a program has closed its outputs.
    """

    client: CriClient
    container_id: str
    tls: TlsFiles | None = None
    limit_s: int = 60
    silence_s: float = 10.0

    def run(self, *command: str) -> CommandResult:
        _check_words(command)
        client, is_missing = self.client, False
        try:
            answer = sessions.exec_sync(client, self.container_id, command, limit_s=self.limit_s)
            is_missing = answer.exit_code in _MISSING_STATUS and not answer.stdout
        except RuntimeFault as exc:
            is_missing = any(words in exc.details for words in _MISSING)
            if not is_missing or isinstance(exc, NotFound):
                raise
        if is_missing:
            raise Unimplemented(
                f"there is no {command[0]} in the container",
                hint="--method node needs no program in the container",
            )
        return CommandResult(answer.exit_code, answer.stdout, answer.stderr[:_MAX_STDERR_BYTES])

    def kind_of(self, path: bytes, *, follow: bool = False) -> Existing:
        """Return the kind of a path; with ``follow``, of a link's target unless it is dangling."""
        for options in (["-L"], []) if follow else ([],):
            ended = self.run("stat", *options, "-c", "%f", "--", os.fsdecode(path))
            with suppress(ValueError):
                return kind_of_mode(int(ended.stdout, 16))
        if b"ermission denied" in ended.stderr:
            raise ended.failure("look at", path)
        return Existing.NOTHING

    def refuse_kernel_file_system(self, path: bytes) -> None:
        """Refuse a path on a file system of the kernel, not storage, if that can be detected."""
        try:
            ended = self.run("stat", "-f", "-c", "%t", "--", os.fsdecode(path))
            name = KERNEL_FILE_SYSTEMS.get(int(ended.stdout, 16))
        except (Unimplemented, ValueError):  # not detectable
            return
        if name is not None:
            raise KernelFileSystem(path, name)

    def output(self, *command: str) -> Generator[bytes, None, CommandResult]:
        """Run a program, yield its output, and return its result; raises as ``feed``."""
        _check_words(command)
        reading, writing = os.pipe()
        with held(reading):
            ended = self._started(command, writing, stdin=False)
            while data := os.read(reading, CHUNK_BYTES):
                yield data
        return ended.result()

    def feed(self, command: Sequence[str], pieces: Iterable[bytes]) -> CommandResult:
        """Run a program with the given input, and wait for its exit.

        Raises:
            StreamError: the connection broke before the exit status was known.
            CopyError: the program did not read all of its input.
            PycrictlError: the program could not be started.
        """
        _check_words(command)
        reading, writing = os.pipe()
        is_read = True
        with open(writing, "wb", buffering=0) as pipe:  # noqa: PTH123 (a descriptor)
            ended = self._started(command, reading, stdin=True)
            try:
                for piece in pieces:
                    write_pieces(pipe.fileno(), [piece])
            except BrokenPipeError:
                is_read = False
        result = ended.result()
        if not (is_read or result.status):  # the runtime may have lost the status
            raise CopyError(f"{command[0]} in the container ended before it had read everything")
        return result

    def _started(self, command: Sequence[str], fd: int, *, stdin: bool) -> Future[CommandResult]:
        """Start a program with this end of a pipe as its input or output.

        The connection has an event loop in a thread of its own, which ends when the pipe does.
        """
        result: Future[CommandResult] = Future()
        stderr = bytearray()

        def follow() -> None:
            try:
                with open(fd, "r" if stdin else "w") as pipe:
                    result.set_result(run_in_loop(self._run(command, pipe, stderr)))
            except Exception as exc:
                # A runtime may never report the exit of a program that has left much of its input
                # unread, as tar does on a full disk.
                if isinstance(exc, StreamError) and stdin and stderr:
                    result.set_result(CommandResult(-1, b"", bytes(stderr)))
                else:
                    result.set_exception(exc)

        threading.Thread(target=follow, daemon=True).start()
        return result

    async def _run(self, command: Sequence[str], pipe: TextIO, stderr: bytearray) -> CommandResult:
        kept = _Kept(stderr)
        if pipe.readable():
            outcome = await self.stream(command, Ends(kept, kept, Input(pipe)))
        else:
            output = Output(pipe)
            outcome = await self.stream(command, Ends(output, kept))
            await output.finish()
        if outcome is None:
            raise StreamError("the connection ended before the outcome was known")
        if outcome.exit_code is None:
            raise CopyError(f"cannot run {command[0]} in the container: {outcome.message}")
        return CommandResult(outcome.exit_code, b"", bytes(stderr))

    async def stream(self, command: Sequence[str], ends: Ends) -> ExitReported | None:
        stdin = ends.stdin is not None
        ask_url = partial(
            sessions.exec_url, self.client, self.container_id, command, stdin=stdin, tty=False
        )
        return await run_command(
            ask_url, Streams(stdin=stdin), ends,
            timeout_s=self.client.timeout_s, tls=self.tls, silence_s=self.silence_s,
        )  # fmt: skip


def _check_words(command: Sequence[str]) -> None:
    """Require that the CRI, whose strings are UTF-8, can carry a command."""
    for word in command:
        if not (word.isascii() or word == word.encode(errors="replace").decode()):
            raise CopyError(
                f"{quote(word)} is not UTF-8 and cannot be passed to a program in the container",
                hint=_USE_NODE,
            )


class OverExec:
    name = "exec"

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    @contextmanager
    def read(
        self, path: bytes, rules: Rules, watch: Watch, *, follow: bool = False
    ) -> Iterator[Outgoing]:
        remote, text = self._remote, take_apart(path)
        if has_wildcards(path) and remote.kind_of(text.path) is Existing.NOTHING:
            raise Unimplemented("tar in the container expands no wildcards", hint=_USE_NODE)
        is_gnu = b"GNU tar" in remote.run("tar", "--version").stdout
        is_entered = text.wants_directory or (
            follow and remote.kind_of(text.path, follow=True) is Existing.DIRECTORY
        )
        words = ["tar", "-c", "-f", "-"]
        if is_gnu:
            words.append("--format=posix")  # the other formats store whole seconds only
        if is_entered and text.path == b"/":
            words += ("--exclude=./proc", "--exclude=./sys")
        elif follow and not is_entered:
            words.append("-h")  # the source is a file: there are no other links
        parent, _, base = text.path.rpartition(b"/")
        folder, member = (text.path, b".") if is_entered else (parent or b"/", b"./" + base)
        words += ("-C", os.fsdecode(folder), "--", os.fsdecode(member))
        top = b"." if text.wants_contents else text.name
        name = b"." if is_entered else top
        cleaner = Cleaner(rules._replace(archive=True), watch, name=name, top=top, unpacks=False)

        def packed() -> Generator[bytes, None, None]:
            remote.refuse_kernel_file_system(text.path)
            with closing(remote.output(*words)) as output:
                ended = yield from output
            _check_packed(ended, path, is_gnu=is_gnu, on_skip=watch.on_skip)

        def pieces() -> Generator[memoryview, None, None]:
            with closing(packed()) as archive:
                for piece in in_large_pieces(cleaner.clean(archive)):
                    yield memoryview(piece)
            if rules.archive and cleaner.of_1970 and not is_gnu:
                entries = plural(cleaner.of_1970, "entry has", "entries have")
                watch.note(f"{entries} the time 1970-01-01, to which BusyBox moves earlier times")

        yield Outgoing(pieces, top)

    def write(self, archive: Archive, path: bytes, rules: Rules, watch: Watch) -> Summary:
        if rules.no_clobber:
            raise Unimplemented(
                "tar in the container cannot leave existing files alone (--no-clobber)",
                hint=_USE_NODE,
            )
        self._remote.run("tar", "--version")
        if archive.tree is not None:
            report_total(archive.tree, watch)
        folder, name = self._place(path, archive.kind or SourceKind.ARCHIVE, archive.name or b".")
        cleaner = Cleaner(rules, watch, name=archive.name, top=name or b".", unpacks=True)
        shown = quote(os.fsdecode(folder if name is None else _join(folder, name)))
        left = f"anything that had arrived was left in {shown}"
        has_begun = False

        def sent() -> Iterator[bytes]:
            nonlocal has_begun
            with closing(archive.pieces()) as pieces:
                for piece in in_large_pieces(cleaner.clean(pieces)):
                    has_begun = True
                    yield piece

        # Without -a everything belongs to the user that tar runs as.
        options = ["-p"] if rules.archive else ["-p", "-o"]
        words = ["tar", "-x", *options, "-f", "-", "-C", os.fsdecode(folder)]
        try:
            self._unpack(words, sent(), path)
            if rules.archive and cleaner.summary.links:
                # BusyBox creates some links last, which changes the times of their directories.
                self._unpack(words, in_large_pieces(cleaner.directories()), path)
        except PycrictlError as exc:
            if not has_begun:
                raise
            hint = f"{exc.hint}; {left}" if exc.hint else left
            raise CopyError(f"{exc.message}; {_INCOMPLETE}", hint=hint) from exc
        except BaseException:
            if has_begun:
                log.warning("%s: %s", _INCOMPLETE, left)
            raise
        return cleaner.summary

    def _unpack(self, words: list[str], archive: Iterable[bytes], path: bytes) -> None:
        ended = self._remote.feed(words, archive)
        if ended.status:
            raise ended.failure("copy to", path)

    def _place(self, path: bytes, kind: SourceKind, top: bytes) -> tuple[bytes, bytes | None]:
        """Return the directory that the copy goes into, and its name there.

        If the name is None, the contents of the source go there.
        """
        text = take_apart(path)
        folder = text.path
        existing = self._remote.kind_of(folder, follow=True)
        name = place(kind, top, destination=text, existing=existing)
        if existing is not Existing.DIRECTORY:
            folder = folder.rpartition(b"/")[0] or b"/"
            if self._remote.kind_of(folder, follow=True) is not Existing.DIRECTORY:
                raise CopyError(f"there is no directory {quote(os.fsdecode(folder))}")
        if name is not None:
            target = _join(folder, name)
            old, shown = self._remote.kind_of(target), quote(os.fsdecode(target))
            if meet(Existing(kind.value), old, no_clobber=False, shown=shown) is Meeting.MERGE:
                folder, name = target, None  # the contents of the source go into it
        self._remote.refuse_kernel_file_system(folder)
        return folder, name


def _join(folder: bytes, name: bytes) -> bytes:
    return folder.rstrip(b"/") + b"/" + name


def in_large_pieces(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """Yield the same bytes in multiples of ``CHUNK_BYTES``, large enough to detect holes in."""
    held = bytearray()
    for piece in pieces:
        held += piece
        if whole := len(held) // CHUNK_BYTES * CHUNK_BYTES:
            yield bytes(held[:whole])
            del held[:whole]
    if held:
        yield bytes(held)


def _check_packed(ended: CommandResult, path: bytes, *, is_gnu: bool, on_skip: OnSkip) -> None:
    """Raise an error if ``tar`` has failed; report the entries that its stderr names as skipped.

    Status 1 of GNU tar only means that files were changed or removed meanwhile.
    """
    if ended.status and not (is_gnu and ended.status == 1):
        raise ended.failure("copy", path)
    for line in ended.stderr.splitlines():
        name, _, reason = line.strip().removeprefix(b"tar: ").rpartition(b": ")
        if name and reason != _CHANGED:  # the other methods do not notice that either
            said = quote(reason.decode(errors="replace"))
            on_skip(Skipped(name, "tar", f"tar says {said}"))


class Cleaner:
    """Turns the bytes of an archive into those of a clean one.

    Args:
        rules: what the user allows; metadata that is not kept is reset in the new archive.
        name: the required name of its only file or directory; None: any number of entries.
        top: the new name of that file or directory.
        unpacks: whether ``tar`` in a container unpacks it: directories are then writable at first,
            and repeated at the end with their final mode and time; long names are written in a
            form that BusyBox reads. Otherwise links that point outside are kept.

    Attributes:
        of_1970: how many entries have the time 0, which some writers give to all earlier times.
    """

    def __init__(
        self,
        rules: Rules,
        watch: Watch,
        *,
        name: bytes | None,
        top: bytes,
        unpacks: bool,
    ) -> None:
        self.summary = Summary()
        self.of_1970 = 0
        self.judge = Judge(rules, single=name is not None, name=name)
        self._needs_any = name is not None
        self._watch = watch
        self._top = () if top == b"." else (top,)
        self._unpacks = unpacks
        self._now_ns = time.time_ns() // NS_PER_S * NS_PER_S
        self._directories: dict[bytes, Entry] = {}
        self._last_skipped: Skipped | None = None

    def clean(self, pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        """Yield the new archive; each piece is valid until the next is requested."""
        current: Entry | None = None
        for event in read(pieces):
            if isinstance(event, EntryStarted):
                current = self._judged(event.entry)
                if current is not None:
                    yield encode_entry(current, busybox=self._unpacks)
            elif isinstance(event, DataReceived):
                if current is not None:
                    self._watch.on_bytes(len(event.data))
                    yield event.data
            elif isinstance(event, EntryFinished) and current is not None:
                yield padding_after(current.size_bytes)
        if self._needs_any and self.summary == Summary():
            raise nothing_copied(self._last_skipped)
        if note := unkept_note(self.judge.unkept):
            self._watch.note(note)
        yield from self.directories()

    def directories(self) -> Iterator[bytes]:
        """Yield the directories in their final state, deepest first, and the end of the archive."""
        for entry in reversed(self._directories.values()):
            yield encode_entry(entry, busybox=True)
        yield END_OF_ARCHIVE

    def _judged(self, entry: Entry) -> Entry | None:
        """Return the entry to write; None if it is left out."""
        verdict = self.judge.judge(entry)
        name = self._renamed(entry.name)
        if isinstance(verdict, Skipped):
            if self._unpacks or verdict.rule != "outward-link":
                self._last_skipped = verdict
                self._watch.on_skip(verdict)
                return None
            self.summary.links += 1
            return entry._replace(name=name)
        self.summary.count(verdict)
        self.of_1970 += entry.mtime_ns == 0
        kind = verdict.kind
        link = self._renamed(entry.link) if kind is EntryType.HARDLINK else verdict.target
        mtime_ns = self._now_ns if verdict.mtime_ns is None else verdict.mtime_ns
        entry = Entry(
            name, kind, verdict.size_bytes, verdict.mode, mtime_ns, *verdict.owner or (0, 0), link
        )
        if kind is not EntryType.DIRECTORY or not self._unpacks:
            return entry
        if name == b".":
            return None  # it exists already, and stays unchanged
        self._directories[name] = entry
        return entry._replace(mode=entry.mode | stat.S_IRWXU)

    def _renamed(self, name: bytes) -> bytes:
        path = policy.take_apart(name, what=name)
        below = path if self.judge.top == b"." else path[1:]
        return b"/".join((*self._top, *below)) or b"."
