from __future__ import annotations

import os
import zlib

import pytest

from pycrictl.copy.checksum import Checksum

SIZES = (0, 1, 511, 131_071, 131_072, 1_048_575, 1_048_576, 1_048_577, 3_000_000)


@pytest.mark.parametrize("size", SIZES)
def test_pieces_of_all_sizes(size: int) -> None:
    checksum = Checksum()
    data = [os.urandom(size), os.urandom(1000), os.urandom(size)]
    for piece in (data[0], data[1], memoryview(data[2]), bytearray(data[0])):
        checksum.add(piece)
    expected = zlib.crc32(b"".join([*data, data[0]]))
    assert checksum.wait() == checksum.wait() == expected
    checksum.close()
    checksum.close()
    assert checksum.wait() == expected


def test_two_buffers_in_turn_are_enough() -> None:
    checksum = Checksum()
    buffers = [bytearray(1 << 20), bytearray(1 << 20)]
    expected = 0
    for number in range(50):
        buffer = buffers[number % 2]
        buffer[:] = bytes([number]) * len(buffer)
        checksum.add(buffer)
        expected = zlib.crc32(bytes([number]) * len(buffer), expected)
    checksum.close()
    assert checksum.wait() == expected
