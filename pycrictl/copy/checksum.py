"""The checksum of a copy stream, CRC-32 (IEEE 802.3), computed beside the work on its bytes.

It takes as long as writing them does, and both leave Python's lock alone, so a thread of its own
halves the time. With isal, which is optional (``pycrictl[fast]``), it takes a third of that. It
finds damage, not malice: anybody can make bytes of a given checksum.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

_WORTH_BYTES: Final = 128 * 1024
"""Below that, handing the bytes to the thread takes longer than it saves."""


class Checksum:
    """The checksum of bytes that come one piece after another."""

    def __init__(self) -> None:
        self._value = 0
        self._thread: ThreadPoolExecutor | None = None
        self._pending: Future[int] | None = None

    def add(self, data: bytes | bytearray | memoryview) -> None:
        """Take in the next bytes. They must stay as they are until the next call of a method."""
        self.wait()
        if len(data) < _WORTH_BYTES:
            self._value = crc32(data, self._value)
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1)
        self._pending = self._thread.submit(crc32, data, self._value)

    def wait(self) -> int:
        """The checksum of all bytes so far, which are not needed any more."""
        if self._pending is not None:
            self._value = self._pending.result()
            self._pending = None
        return self._value

    def close(self) -> None:
        """End the thread. The checksum can still be asked for."""
        self.wait()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
