"""A file system that is mounted, and whose server has stopped (fuse(4))."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

# struct fuse_in_header and fuse_out_header begin with lengths; FUSE_INIT is answered by
# struct fuse_init_out, here of version 7.31 with no capabilities.
_REQUEST: Final = struct.Struct("<IIQ")
_ANSWER: Final = struct.Struct("<IiQ")
_INIT: Final = struct.Struct("<IIIIHHIIHHI28x")
_READ_BYTES: Final = 64 * 1024
_WRITE_BYTES: Final = 4096


@contextmanager
def hung(folder: Path) -> Iterator[int]:
    """Mount it; needs root. In the end, whoever waits for it gets an error.

    Returns:
        A descriptor that becomes readable when somebody asks the file system for something. It is
        not to be read: whoever asked could not even be killed then.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    try:
        if libc.mount(b"hung", bytes(folder), b"fuse.hung", 0, options):
            raise OSError(ctypes.get_errno(), "mount")
        try:
            _, _, unique = _REQUEST.unpack_from(os.read(device, _READ_BYTES))
            init = _INIT.pack(7, 31, 0, 0, 0, 0, _WRITE_BYTES, 1, 0, 0, 0)
            os.write(device, _ANSWER.pack(_ANSWER.size + len(init), 0, unique) + init)
            yield device
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)
    finally:
        os.close(device)
