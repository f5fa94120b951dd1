"""The checksum of a copy stream, CRC-32 (IEEE 802.3), computed beside the work on its bytes.

With isal, which not all machines have, it takes a third of the time. It finds damage, not malice:
anybody can make bytes of a given checksum.
"""

from __future__ import annotations

from pycrictl.copy.beside import WORTH_BYTES, Beside

try:
    from isal.isal_zlib import crc32

    IS_FAST = True
except ImportError:
    from zlib import crc32

    IS_FAST = False


class Checksum:
    """The checksum of bytes that come one piece after another.

    Args:
        is_beside: compute it in a thread. Where both processors are busy anyway, as where writing
            goes on beside, that only pays if it takes long.
    """

    def __init__(self, *, is_beside: bool = True) -> None:
        self._value = 0
        self._is_beside = is_beside
        self._beside = Beside[int]()

    def add(self, data: bytes | bytearray | memoryview) -> None:
        """Take in the next bytes. They must stay as they are until the next call of a method."""
        value = self.wait()
        if len(data) < WORTH_BYTES or not self._is_beside:
            self._value = crc32(data, value)
        else:
            self._beside.start(lambda: crc32(data, value))

    def wait(self) -> int:
        """The checksum of all bytes so far, which are not needed any more."""
        value = self._beside.wait()
        if value is not None:
            self._value = value
        return self._value

    def close(self) -> None:
        """End the thread. The checksum can still be asked for."""
        self.wait()
        self._beside.close()
