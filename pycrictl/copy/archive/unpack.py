"""A tar archive as a tree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pycrictl.copy.archive.arrival import Arrival
from pycrictl.copy.rules.policy import Rules, Skipped
from pycrictl.copy.rules.summary import Summary
from pycrictl.copy.tree.content import OnBytes, SparseWriter
from pycrictl.copy.tree.places import Destination
from pycrictl.copy.tree.walk import OnSkip
from pycrictl.wire.tar.reader import (
    ArchiveFinished,
    DataReceived,
    EntryFinished,
    EntryStarted,
    TarReader,
)


class Unpacker:
    """The bytes of an archive in, a tree at the destination out.

    Nothing is visible before ``finish``. Use it as a context manager: without ``finish`` nothing
    remains.

    Args:
        destination: where it goes; closed by the caller.
        rules: what the user allows.
        on_skip: called with what is left out.
        on_bytes: called with how much more content has been written.
        single: the archive holds one file or directory; else any number of them.
        name: what it must be called; None accepts any name.
    """

    def __init__(
        self,
        destination: Destination,
        rules: Rules,
        *,
        on_skip: OnSkip,
        on_bytes: OnBytes | None = None,
        single: bool = True,
        name: bytes | None = None,
    ) -> None:
        self._arrival = Arrival(destination, rules, on_skip=on_skip, single=single, name=name)
        self._on_bytes = on_bytes or _ignore
        self._reader = TarReader()
        self._writer: SparseWriter | None = None

    def __enter__(self) -> Unpacker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def has_absolute(self) -> bool:
        """Whether a name began with a slash, which was left out."""
        return self._arrival.has_absolute

    def skip(self, skipped: Skipped) -> None:
        """Count and report something that was left out before it came."""
        self._arrival.skip(skipped)

    def receive_data(self, data: bytes | bytearray | memoryview) -> None:
        """Unpack the next bytes.

        Raises:
            StreamError: this is not an acceptable archive.
            EntryRefused: an entry breaks a rule.
            CopyError: the destination cannot take it.
        """
        self._reader.receive_data(data)
        self._deal()

    def finish(self) -> Summary:
        """Verify the archive, which has ended, and put what came into its place.

        Raises:
            CopyError: something is in the way.
            StreamError: it is not complete.
        """
        self._reader.receive_eof()
        self._deal()
        return self._arrival.commit()

    def close(self) -> None:
        """Remove what was not finished."""
        self._arrival.close()

    def _deal(self) -> None:
        for event in self._reader.events_received():
            if isinstance(event, DataReceived):
                self._write(event.data)
            elif isinstance(event, EntryStarted):
                fd = self._arrival.begin(event.entry)
                if fd is not None:
                    self._writer = SparseWriter(fd, event.entry.size_bytes)
            elif isinstance(event, EntryFinished):
                if self._writer is not None:
                    with self._failures():
                        self._writer.finish()
                    self._writer = None
                self._arrival.end()
            else:
                assert isinstance(event, ArchiveFinished)
        if self._reader.error is not None:
            raise self._reader.error

    def _write(self, data: memoryview) -> None:
        if self._writer is None:
            return
        with self._failures():
            self._writer.write(data)
        self._on_bytes(len(data))

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            raise self._arrival.failure(exc) from exc


def _ignore(_: int) -> None:
    """Do nothing: no count is wanted."""
