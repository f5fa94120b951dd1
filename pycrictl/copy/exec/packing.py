"""``tar -c`` in a container, and what ends it if nobody reads its output any more."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from typing import Final

from pycrictl.copy.archive.archives import Outgoing
from pycrictl.copy.exec.cleaning import Cleaner
from pycrictl.copy.exec.remote import Remote
from pycrictl.copy.exec.running import Ended, in_large_pieces
from pycrictl.copy.rules.policy import Rules, Skipped
from pycrictl.copy.rules.spec import take_apart
from pycrictl.copy.tree.walk import OnSkip, Watch
from pycrictl.units import quote

_GNU: Final = b"GNU tar"
_COMPLAINT: Final = re.compile(rb"tar: (?P<name>.+): (?P<reason>[^:]+)")
_CHANGED: Final = b"file changed as we read it"
_VANISHED: Final = b"File removed before we read it"
_MARK_BITS: Final = 32


class Packing:
    def __init__(self, remote: Remote, path: bytes, *, follow: bool) -> None:
        self._remote = remote
        self._path = path
        self._follow = follow
        self._is_gnu = _GNU in remote.tar_version()
        text = self._text = take_apart(path)
        self.top = b"." if text.wants_contents else text.name
        self._is_entered = text.wants_directory or (
            follow and not remote.run("test", "-d", os.fsdecode(text.path)).status
        )

    def _command(self, mark: str) -> list[str]:
        path = self._text.path
        words = ["tar", "-c", "-f", "-"]
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
            _watched(self._remote) as mark,
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


@contextmanager
def _watched(remote: Remote) -> Iterator[str]:
    """Let a ``tar`` end soon after this block, or after the death of this program.

    The runtime does not let it know that its reader has gone: it would wait to write more for as
    long as the container runs. Where the container has none of the programs that are needed,
    nothing happens.

    Yields:
        What to add to the path of the directory that ``tar`` enters. It means nothing in a path,
        and marks the command.
    """
    bits = f"{random.getrandbits(_MARK_BITS):0{_MARK_BITS}b}"
    mark = bits.replace("0", "/.").replace("1", "//.")
    with remote.stream(*watchdog(mark), stdin=True) as dog:
        dog.wait_for_streams()  # a tar that ran before might outlive this program
        yield mark


def watchdog(mark: str) -> list[str]:
    """Return a command that waits for the end of its input, and then kills what bears a mark.

    It takes what containers have: ``xargs`` waits, ``find`` and ``grep`` look for the process, and
    ``start-stop-daemon`` (BusyBox, Debian) or ``pkill`` (procps) ends it. For the former,
    ``/proc/PID/stat`` serves as a PID file, since it begins with the number of the process.
    """
    pattern = mark.replace(".", "[.]")  # does not match itself
    return [
        *("xargs", "-0", "find", "/proc", "-maxdepth", "1"),
        *("-path", "/proc", "-exec", "sleep", "1", ";", "-o"),  # tar may be about to start
        *("-name", "[1-9]*", "-exec", "grep", "-qsz", pattern, "{}/cmdline", ";"),
        *("(", "-exec", "start-stop-daemon", "-K", "-s", "KILL", "-p", "{}/stat", ";"),
        *("-o", "-exec", "pkill", "-KILL", "-f", pattern, ";", ")"),
    ]
