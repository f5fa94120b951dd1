"""The method ``exec``: ``tar`` in the container, where no better method can be used.

In both directions the archive is kept in an unnamed file on this machine, checked and written anew
as it arrives: two programs may parse the same bytes differently, and the archive that is unpacked
must be the one that was checked. ``tar`` in a container unpacks it in place, not atomically: on
failure, files that have arrived stay, and the error says where.

Commands are lists of words, and none runs in a shell.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from pycrictl.base.errors import CopyError, PycrictlError, StreamError, Unimplemented
from pycrictl.base.units import quote
from pycrictl.copy.archive.archives import Archive, Outgoing, Spool
from pycrictl.copy.archive.arrival import nothing_copied
from pycrictl.copy.archive.pack import report_total
from pycrictl.copy.rules import policy, spec
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Judge, Rules, Skipped
from pycrictl.copy.rules.spec import Existing, SourceKind
from pycrictl.copy.tree.rootfs import KernelFileSystem, kind_of_mode
from pycrictl.copy.tree.walk import Watch
from pycrictl.runtime.cri import sessions
from pycrictl.streams.loop import run_in_loop
from pycrictl.streams.pump import ByteSink, Ends, Input
from pycrictl.streams.remote_command import run_command
from pycrictl.streams.wire.command import ExitReported, Streams
from pycrictl.streams.wire.tar import header, reader
from pycrictl.streams.wire.tar.header import Entry, EntryType

if TYPE_CHECKING:
    from pycrictl.runtime.cri.calls.client import CriClient
    from pycrictl.streams.target import TlsFiles

log = logging.getLogger("pycrictl.copy")

_USE_NODE: Final = "--method node can do it"
_MAX_KEPT_BYTES: Final = 64 * 1024
_MISSING_STATUS: Final = (126, 127)
"""The exit statuses that mean that a program cannot be run."""


class Ended(NamedTuple):
    """How a program in the container ended, and the lines of its standard error, quoted."""

    status: int
    lines: list[str]

    def check(self) -> None:
        if self.status:
            said = self.lines[0] if self.lines else f"it ended with status {self.status}"
            raise CopyError(f"tar in the container failed: {said}")


class _Kept(NamedTuple):
    """Keeps the start of an output."""

    kept: bytearray

    async def write(self, *pieces: bytes | memoryview) -> None:
        for piece in pieces:
            self.kept.extend(piece[: _MAX_KEPT_BYTES - len(self.kept)])


class OverExec:
    name = "exec"

    def __init__(
        self, client: CriClient, container_id: str, *, tls: TlsFiles | None = None
    ) -> None:
        self._client = client
        self._container_id = container_id
        self._tls = tls

    @contextmanager
    def read(
        self, path: bytes, rules: Rules, watch: Watch, *, follow: bool = False
    ) -> Iterator[Outgoing]:
        text = spec.take_apart(path)
        for is_asked, what in (
            (spec.has_wildcards(path), "expands no wildcards"),
            (follow, "cannot follow a single link (-L)"),
            (text.path == b"/", "cannot leave out /proc and /sys"),
        ):
            if is_asked:
                raise Unimplemented(f"tar in the container {what}", hint=_USE_NODE)
        _refuse_kernel_file_system(text.path)
        parent, _, base = text.path.rpartition(b"/")
        top = name = b"." if text.wants_contents else text.name
        folder, member = parent or b"/", b"./" + base
        if text.wants_directory:
            folder, member, name = text.path, b".", b"."
        words = ("tar", "-c", "-f", "-", "-C", os.fsdecode(folder), "--", os.fsdecode(member))

        def pieces() -> Generator[memoryview, None, None]:
            with Spool() as spool:
                clean = CleanArchive(spool, rules._replace(archive=True), watch, name, top)
                ended = self._run(words, clean)
                ended.check()
                clean.finish()
                for line in ended.lines:
                    watch.on_skip(Skipped(path, "tar", line))
                yield from spool.pieces()

        yield Outgoing(pieces, top)

    def write(self, archive: Archive, path: bytes, rules: Rules, watch: Watch) -> Summary:
        if rules.no_clobber:
            what = "tar in the container cannot leave existing files alone (--no-clobber)"
            raise Unimplemented(what, hint=_USE_NODE)
        folder, name = self._place(path, archive.kind or SourceKind.ARCHIVE, archive.name or b".")
        # Without -a everything belongs to the user that tar runs as.
        options = ("-p",) if rules.archive else ("-p", "-o")
        words = ("tar", "-x", *options, "-f", "-", "-C", os.fsdecode(folder))
        if archive.tree is not None:
            report_total(archive.tree, watch)
        with Spool() as spool, closing(archive.pieces()) as pieces:
            clean = CleanArchive(spool, rules, watch, archive.name, name or b"")
            for piece in pieces:
                clean.receive(piece)
            clean.finish()
            left = f"anything that had arrived was left in {quote(os.fsdecode(path))}"
            os.lseek(spool.fd, 0, os.SEEK_SET)
            try:
                with os.fdopen(spool.fd, closefd=False) as whole:
                    self._run(words, _Kept(bytearray()), Input(whole)).check()
            except Unimplemented:
                raise
            except PycrictlError as exc:
                raise CopyError(f"{exc.message}; the copy is incomplete", hint=left) from exc
            except BaseException:
                log.warning("the copy is incomplete: %s", left)
                raise
        return clean.summary

    def _place(self, path: bytes, kind: SourceKind, top: bytes) -> tuple[bytes, bytes | None]:
        """Return the directory that the copy goes into, and its name there.

        If the name is None, the contents of the source go there.
        """
        text = spec.take_apart(path)
        folder = text.path
        _refuse_kernel_file_system(folder)
        existing = self._kind_of(folder, "-L")
        name = spec.place(kind, top, destination=text, existing=existing)
        if existing is not Existing.DIRECTORY:
            folder = folder.rpartition(b"/")[0] or b"/"
            if self._kind_of(folder, "-L") is not Existing.DIRECTORY:
                raise CopyError(f"there is no directory {quote(os.fsdecode(folder))}")
        if name is not None:
            target = folder.rstrip(b"/") + b"/" + name
            old, shown = self._kind_of(target), quote(os.fsdecode(target))
            meeting = spec.meet(Existing(kind.value), old, no_clobber=False, shown=shown)
            if meeting is spec.Meeting.MERGE:
                return target, None  # the contents of the source go into it
        return folder, name

    def _kind_of(self, path: bytes, *options: str) -> Existing:
        """Return the kind of a path; with ``-L``, of what a link points to."""
        said = _Kept(bytearray())
        self._run(("stat", *options, "-c", "%f", "--", os.fsdecode(path)), said)
        return kind_of_mode(int(said.kept, 16)) if said.kept else Existing.NOTHING

    def _run(self, command: tuple[str, ...], stdout: ByteSink, stdin: Input | None = None) -> Ended:
        """Run a program to its end.

        Raises:
            Unimplemented: the container does not have it.
            StreamError: the connection broke before the exit status was known.
        """
        stderr, status, message = _Kept(bytearray()), None, ""
        for word in command:
            if word != word.encode(errors="replace").decode():  # the CRI's strings are UTF-8
                what = f"{quote(word)} is not UTF-8 and cannot be passed to a program"
                raise CopyError(what, hint=_USE_NODE)
        try:
            if outcome := run_in_loop(self.stream(command, Ends(stdout, stderr, stdin))):
                status, message = outcome.exit_code, outcome.message
        except StreamError:
            # A runtime may never report the exit of a program that has left much of its input
            # unread, as tar does on a full disk.
            if stdin is None or not stderr.kept:
                raise
            status = -1
        if status in _MISSING_STATUS or (status is None and "not found" in message):
            what = f"there is no {command[0]} in the container"
            raise Unimplemented(what, hint="--method node needs no program in the container")
        if status is None:
            raise CopyError(f"cannot run {command[0]} in the container: {message}")
        said = map(str.strip, stderr.kept.decode(errors="replace").splitlines())
        return Ended(status, [quote(line, limit=200) for line in said if line])

    async def stream(self, command: tuple[str, ...], ends: Ends) -> ExitReported | None:
        client, stdin = self._client, ends.stdin is not None
        ask_url = partial(
            sessions.exec_url, client, self._container_id, command, stdin=stdin, tty=False
        )
        streams, timeout_s = Streams(stdin=stdin), client.timeout_s
        return await run_command(
            ask_url, streams, ends, timeout_s=timeout_s, tls=self._tls, silence_s=10.0
        )


def _refuse_kernel_file_system(path: bytes) -> None:
    if (name := path.split(b"/")[1]) in (b"proc", b"sys"):
        raise KernelFileSystem(path, "procfs" if name == b"proc" else "sysfs")


class CleanArchive:
    """Writes an archive anew as it is received; a ``ByteSink`` for the output of ``tar``.

    Args:
        spool: where it is written; long names have a form that BusyBox reads.
        rules: what the user allows; metadata that is not kept is reset.
        name: the required name of its only file or directory; None: any number of entries.
        top: the new name of that file or directory; empty for the contents of a directory that
            exists already and stays unchanged.
    """

    def __init__(
        self, spool: Spool, rules: Rules, watch: Watch, name: bytes | None, top: bytes
    ) -> None:
        self.summary = Summary()
        self._spool = spool
        self._watch = watch
        self._judge = Judge(rules, single=name is not None, name=name)
        self._is_single = name is not None
        self._top = (top,) if top else ()
        self._reader = reader.TarReader()
        self._entry: Entry | None = None
        self._now_ns = time.time_ns() // header.NS_PER_S * header.NS_PER_S
        self._last_skipped: Skipped | None = None

    async def write(self, *pieces: bytes | memoryview) -> None:
        for piece in pieces:
            self.receive(piece)

    def receive(self, piece: bytes | memoryview) -> None:
        self._reader.receive_data(piece)
        self._pass_on()

    def finish(self) -> None:
        self._reader.receive_eof()
        self._pass_on()
        if self._is_single and self.summary == Summary():
            raise nothing_copied(self._last_skipped)
        self._spool.write(header.END_OF_ARCHIVE)
        self._spool.finish()

    def _pass_on(self) -> None:
        for event in self._reader.events_received():
            if isinstance(event, reader.EntryStarted):
                self._entry = self._accepted(event.entry)
                if self._entry is not None:
                    self._spool.write(header.encode_entry(self._entry, busybox=True))
            elif isinstance(event, reader.DataReceived) and self._entry is not None:
                self._watch.on_bytes(len(event.data))
                self._spool.write(event.data)
            elif isinstance(event, reader.EntryFinished) and self._entry is not None:
                self._spool.write(header.padding_after(self._entry.size_bytes))
        if self._reader.error is not None:
            raise self._reader.error

    def _accepted(self, entry: Entry) -> Entry | None:
        """Return the entry to write; None if it is left out."""
        verdict = self._judge.judge(entry)
        if isinstance(verdict, Skipped):
            self._last_skipped = verdict
            self._watch.on_skip(verdict)
            return None
        self.summary.count(verdict)
        if not (name := self._renamed(entry.name)):
            return None
        link = self._renamed(entry.link) if verdict.kind is EntryType.HARDLINK else verdict.target
        mtime_ns = self._now_ns if verdict.mtime_ns is None else verdict.mtime_ns
        owner, size_bytes = verdict.owner or (0, 0), verdict.size_bytes
        return Entry(name, verdict.kind, size_bytes, verdict.mode, mtime_ns, *owner, link)

    def _renamed(self, name: bytes) -> bytes:
        path = policy.take_apart(name, what=name)
        return b"/".join((*self._top, *(path if self._judge.top == b"." else path[1:])))
