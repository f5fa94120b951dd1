"""Copying through ``tar`` in the container, where no better method can be used.

What comes out is as hostile as any archive. What goes in is unpacked in a stage beside its place
and moved there by other programs of the container; see ``remote_stage``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from typing import Final

from pycrictl.copy.archive.pack import pack
from pycrictl.copy.archive.repack import Repacker
from pycrictl.copy.archive.unpack import Unpacker
from pycrictl.copy.exec.remote import Remote
from pycrictl.copy.exec.remote_stage import RemoteStage
from pycrictl.copy.exec.remote_tar import watched
from pycrictl.copy.exec.running import Ended, in_large_pieces
from pycrictl.copy.method import Watch
from pycrictl.copy.rules.policy import Rules, Skipped
from pycrictl.copy.rules.spec import SourceKind, take_apart
from pycrictl.copy.rules.summary import Summary
from pycrictl.copy.total import report_total
from pycrictl.copy.tree.content import CHUNK_BYTES, OnBytes
from pycrictl.copy.tree.places import LocalRoot, open_destination, open_source
from pycrictl.copy.tree.walk import OnSkip
from pycrictl.units import quote
from pycrictl.wire.tar.writer import END_OF_ARCHIVE

_GNU: Final = b"GNU tar"
_PACK: Final = ("tar", "-c", "-f", "-")
_COMPLAINT: Final = re.compile(rb"tar: (?P<name>.+): (?P<reason>[^:]+)")
_CHANGED: Final = b"file changed as we read it"
_VANISHED: Final = b"File removed before we read it"


class OverExec:
    """The method ``exec``; see ``Method`` for its functions.

    Args:
        remote: the container.
    """

    name = "exec"

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def copy_from(
        self, path: bytes, local: bytes, rules: Rules, watch: Watch, *, follow: bool = False
    ) -> Summary:
        """Copy out of the container."""
        source = _Packing(self._remote, path, follow=follow, on_skip=watch.on_skip)
        with (
            open_destination(LocalRoot(), local) as destination,
            Unpacker(
                destination,
                rules,
                on_skip=watch.on_skip,
                on_bytes=watch.on_bytes,
                name=source.top,
            ) as unpacker,
        ):
            with closing(
                source.repacked(rules._replace(archive=True), on_bytes=_ignore)
                if source.is_renamed
                else source.pieces()
            ) as pieces:
                for piece in pieces:
                    unpacker.receive_data(piece)
            return unpacker.finish()

    def copy_to(
        self, local: bytes, path: bytes, rules: Rules, watch: Watch, *, follow: bool = False
    ) -> Summary:
        """Copy into the container."""
        _tar_version(self._remote)
        with ExitStack() as stack:
            source = stack.enter_context(open_source(LocalRoot(), local, follow=follow))
            report_total(source, watch)
            stage = RemoteStage(self._remote, path, rules, source.kind, source.top)
            if stage.keeps:
                return Summary(kept=1)
            repacker = stage.repacker(
                on_skip=watch.on_skip, on_bytes=watch.on_bytes, name=source.top
            )
            pieces = stack.enter_context(closing(pack(source, on_skip=watch.on_skip)))
            return stage.fill(repacker, pieces)

    def pack_from(
        self, path: bytes, rules: Rules, watch: Watch, *, follow: bool = False
    ) -> Generator[memoryview, None, Summary]:
        """Yield what is at ``path`` as an archive."""
        source = _Packing(self._remote, path, follow=follow, on_skip=watch.on_skip)
        with closing(
            source.repacked(rules._replace(archive=True), on_bytes=watch.on_bytes)
        ) as pieces:
            return (yield from pieces)

    def unpack_to(self, stream: int, path: bytes, rules: Rules, watch: Watch) -> Summary:
        """Unpack an archive into a directory of the container."""
        _tar_version(self._remote)
        stage = RemoteStage(self._remote, path, rules, SourceKind.ARCHIVE, b".")
        repacker = stage.repacker(on_skip=watch.on_skip, on_bytes=watch.on_bytes)
        summary = stage.fill(repacker, _read(stream))
        watch.note_names(has_absolute=repacker.has_absolute)
        return summary


class _Packing:
    """``tar`` in the container, which packs what is at a path.

    Attributes:
        top: what the file or directory is to be called in the archive.
        is_renamed: ``tar`` calls it ``.`` instead.

    Raises:
        Unimplemented: there is no ``tar``.
        PycrictlError: the runtime cannot run it.
    """

    def __init__(self, remote: Remote, path: bytes, *, follow: bool, on_skip: OnSkip) -> None:
        self._remote = remote
        self._path = path
        self._follow = follow
        self._on_skip = on_skip
        self._is_gnu = _GNU in _tar_version(remote)
        text = self._text = take_apart(path)
        self.top = b"." if text.wants_contents else text.name
        self._is_entered = text.wants_directory or (
            follow and not remote.run_bytes(b"test", b"-d", text.path).status
        )
        self.is_renamed = self._is_entered and not text.wants_contents

    def _command(self, mark: str) -> list[str]:
        path = self._text.path
        words = [*_PACK]
        if self._is_gnu:
            words.append("--format=posix")  # the others have times in whole seconds only
        if self._is_entered:
            if path == b"/":
                words += ("--exclude=./proc", "--exclude=./sys")
            return [*words, "-C", os.fsdecode(path) + mark, "."]
        if self._follow:
            words.append("-h")  # the source is a file: there are no other links
        parent = os.fsdecode(path.rpartition(b"/")[0] or b"/")
        return [*words, "-C", parent + mark, "--", "./" + os.fsdecode(self._text.name)]

    def pieces(self) -> Generator[bytes, None, None]:
        """Yield what ``tar`` writes, and raise its failure after that."""
        self._remote.refuse_kernel_file_system(self._text.path)
        with (
            watched(self._remote) as mark,
            self._remote.stream(*self._command(mark), stdin=False) as tar,
        ):
            yield from in_large_pieces(tar.pieces())
            self._check(tar.ended())

    def repacked(self, rules: Rules, *, on_bytes: OnBytes) -> Generator[memoryview, None, Summary]:
        """Yield a clean archive of what ``tar`` writes, and return what is in it."""
        repacker = Repacker(
            rules,
            on_skip=self._on_skip,
            on_bytes=on_bytes,
            name=b"." if self.is_renamed else self.top,
            top=self.top,
            keeps_links=True,
        )
        with closing(self.pieces()) as pieces:
            for piece in pieces:
                yield from (memoryview(one) for one in repacker.receive_data(piece))
        yield from (memoryview(one) for one in repacker.finish())
        yield memoryview(END_OF_ARCHIVE)
        return repacker.summary

    def _check(self, ended: Ended) -> None:
        """Require that ``tar`` has packed everything, as far as there was anything to pack."""
        complaints = [line for line in ended.stderr.splitlines() if line.strip()]
        known = [match for line in complaints if (match := _COMPLAINT.fullmatch(line.strip()))]
        # GNU tar's status for files that were changed or removed in the meantime, and for no other.
        is_live = self._is_gnu and ended.status == 1 and 0 < len(known) == len(complaints)
        is_live = is_live and all(match["reason"] in (_CHANGED, _VANISHED) for match in known)
        if ended.status and not is_live:
            raise ended.failure("copy", self._path)
        for match in known:
            if match["reason"] != _CHANGED:  # the other methods do not notice that either
                reason = match["reason"].decode(errors="replace")
                self._on_skip(Skipped(match["name"], "tar", f"tar says {quote(reason)}"))


def _tar_version(remote: Remote) -> bytes:
    """Return what the container's ``tar`` says about itself.

    Raises:
        Unimplemented: there is none.
    """
    return remote.run("tar", "--version").stdout


def _read(stream: int) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(CHUNK_BYTES))
    while count := os.readv(stream, [buffer]):
        yield buffer[:count]


def _ignore(_: int) -> None:
    """Do nothing: it is counted where it is written."""
