"""Copying through ``tar`` in the container, where no better method can be used.

What comes out is as hostile as any archive. What goes in is unpacked by ``tar`` where it belongs,
and not in one step: where a copy is refused or breaks off, what has arrived stays, and is named.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from typing import Final

from pycrictl.copy.archive.archives import Incoming, Outgoing
from pycrictl.copy.exec.cleaning import Cleaner
from pycrictl.copy.exec.remote import Remote
from pycrictl.copy.exec.remote_tar import unpack, watched
from pycrictl.copy.exec.running import Ended, in_large_pieces
from pycrictl.copy.rules.policy import Rules, Skipped
from pycrictl.copy.rules.spec import Existing, Into, Meeting, SourceKind, meet, place, take_apart
from pycrictl.copy.rules.summary import Summary
from pycrictl.copy.total import report_total
from pycrictl.copy.tree.walk import OnSkip
from pycrictl.copy.tree.watch import Watch
from pycrictl.errors import CopyError, PycrictlError, Unimplemented
from pycrictl.units import quote

log = logging.getLogger("pycrictl.copy")

_GNU: Final = b"GNU tar"
_PACK: Final = ("tar", "-c", "-f", "-")
_COMPLAINT: Final = re.compile(rb"tar: (?P<name>.+): (?P<reason>[^:]+)")
_CHANGED: Final = b"file changed as we read it"
_VANISHED: Final = b"File removed before we read it"

_INCOMPLETE: Final = "the copy is incomplete"
_MAX_NAMED: Final = 3


class OverExec:
    """The method ``exec``.

    Args:
        remote: the container.
    """

    name = "exec"

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    @contextmanager
    def read(
        self, path: bytes, rules: Rules, watch: Watch, *, follow: bool = False
    ) -> Iterator[Outgoing]:
        """See ``Method``."""
        source = _Packing(self._remote, path, follow=follow)
        archive = Outgoing(lambda: source.pieces(archive, rules, watch), source.top)
        yield archive

    def write(self, archive: Incoming, path: bytes, rules: Rules, watch: Watch) -> Summary:
        """See ``Method``."""
        _require_plain(rules)
        _tar_version(self._remote)
        if archive.tree is not None:
            report_total(archive.tree, watch)
        kind, top = archive.kind or SourceKind.ARCHIVE, archive.name
        folder, name = self._place(path, kind, top or b".")
        cleaner = Cleaner(
            rules,
            on_skip=watch.on_skip,
            on_bytes=watch.on_bytes,
            name=top,
            top=name or b".",
            unpacks=True,
        )
        # Without -a everything belongs to the user that tar runs as.
        options = ["-p"] if rules.archive else ["-p", "-o"]
        has_begun = False

        def sent() -> Iterator[bytes]:
            nonlocal has_begun
            with closing(archive.pieces()) as pieces:
                for piece in in_large_pieces(cleaner.clean(pieces)):
                    has_begun = True
                    yield piece

        try:
            ended = unpack(self._remote, folder, sent(), *options, path=path)
            if not ended.status and rules.archive and cleaner.summary.links:
                # BusyBox makes some links last, and the times of their directories are lost.
                again = in_large_pieces(cleaner.directories())
                ended = unpack(self._remote, folder, again, *options, path=path)
            if ended.status:
                raise ended.failure("copy to", path)
        except PycrictlError as exc:
            if has_begun:
                raise CopyError(
                    f"{exc.message}; {_INCOMPLETE}", hint=_left(folder, cleaner)
                ) from exc
            raise
        except BaseException:
            if has_begun:
                log.warning("%s: %s", _INCOMPLETE, _left(folder, cleaner))
            raise
        watch.note_names(has_absolute=cleaner.has_absolute)
        return cleaner.summary

    def _place(self, path: bytes, kind: SourceKind, top: bytes) -> tuple[bytes, bytes | None]:
        """Return the directory that the copy goes into, and its name there.

        Without a name what is in the source goes there.

        Raises:
            CopyError: something is in the way.
        """
        text = take_apart(path)
        folder = text.path
        existing = self._remote.look(folder, follow=True)
        into, name = place(kind, top, contents=top == b".", destination=text, existing=existing)
        if into is Into.PARENT:
            folder = folder.rpartition(b"/")[0] or b"/"
            if self._remote.look(folder, follow=True) is not Existing.DIRECTORY:
                raise CopyError(f"there is no directory {quote(os.fsdecode(folder))}")
        if name is not None:
            target = _join(folder, name)
            is_file = kind is SourceKind.FILE
            meeting = meet(
                Existing.FILE if is_file else Existing.DIRECTORY,
                self._remote.look(target),
                no_clobber=False,
                shown=quote(os.fsdecode(target)),
            )
            if meeting is Meeting.MERGE:  # it stays as it is, and what is in the source goes there
                folder, name = target, None
        self._remote.refuse_kernel_file_system(folder)
        return folder, name


class _Packing:
    """``tar`` in the container, which packs what is at a path.

    Attributes:
        top: what the file or directory is to be called in the archive.

    Raises:
        Unimplemented: there is no ``tar``.
        PycrictlError: the runtime cannot run it.
    """

    def __init__(self, remote: Remote, path: bytes, *, follow: bool) -> None:
        self._remote = remote
        self._path = path
        self._follow = follow
        self._is_gnu = _GNU in _tar_version(remote)
        text = self._text = take_apart(path)
        self.top = b"." if text.wants_contents else text.name
        self._is_entered = text.wants_directory or (
            follow and not remote.run("test", "-d", os.fsdecode(text.path)).status
        )

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

    def pieces(
        self, archive: Outgoing, rules: Rules, watch: Watch
    ) -> Generator[memoryview, None, None]:
        """Yield a clean archive of what ``tar`` writes.

        What it fails with is raised before the end of the archive.
        """
        self._remote.refuse_kernel_file_system(self._text.path)

        def skip(skipped: Skipped) -> None:
            archive.skipped += 1
            watch.on_skip(skipped)

        cleaner = Cleaner(
            rules._replace(archive=True),
            on_skip=skip,
            on_bytes=watch.on_bytes,
            name=b"." if self._is_entered else self.top,
            top=self.top,
            unpacks=False,
        )
        archive.is_counted, archive.summary = True, cleaner.summary
        with closing(self._raw(skip)) as raw:
            for piece in cleaner.clean(raw):
                yield memoryview(piece)

    def _raw(self, on_skip: OnSkip) -> Generator[bytes, None, None]:
        with (
            watched(self._remote) as mark,
            self._remote.stream(*self._command(mark), stdin=False) as tar,
        ):
            yield from in_large_pieces(tar.pieces())
            self._check(tar.ended(), on_skip)

    def _check(self, ended: Ended, on_skip: OnSkip) -> None:
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
                on_skip(Skipped(match["name"], "tar", f"tar says {quote(reason)}"))


def _tar_version(remote: Remote) -> bytes:
    """Return what the container's ``tar`` says about itself.

    Raises:
        Unimplemented: there is none.
    """
    return remote.run("tar", "--version").stdout


def _require_plain(rules: Rules) -> None:
    """Refuse what ``tar`` cannot do.

    Raises:
        Unimplemented: it is asked for.
    """
    for is_asked, what in (
        (rules.no_clobber, "leave existing files alone (--no-clobber)"),
        (rules.in_place, "write in place (--in-place)"),
    ):
        if is_asked:
            raise Unimplemented(
                f"tar in the container cannot {what}",
                code="Unimplemented",
                hint="--method node can do it",
            )


def _left(folder: bytes, cleaner: Cleaner) -> str:
    """Name what a copy that broke off has left."""
    paths = [quote(os.fsdecode(_join(folder, name))) for name in cleaner.made]
    more = len(paths) - _MAX_NAMED
    named = ", ".join(paths[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
    return f"what had arrived was left in {named}"


def _join(folder: bytes, name: bytes) -> bytes:
    return folder.rstrip(b"/") + b"/" + name
