"""Which programs may run beside a container, and which containers they can run beside."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from pycrictl.errors import PycrictlError
from pycrictl.nsenter import Helper, Tools, check_static
from tests.cli.run import Run
from tests.fakecri import FakeServer


def test_a_static_program() -> None:
    program = shutil.which("busybox")
    assert program is not None
    check_static(Path(program))


@pytest.mark.parametrize("kind", ["dynamic", "no gap", "text", "missing", "pipe", "folder"])
def test_what_is_none(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    if kind == "dynamic":
        path = Path(sys.executable).resolve()
    elif kind == "no gap":  # before the loader's name, as newer linkers write it
        path.write_bytes(b"\x7fELF\x02...\x13/lib64/ld-linux-x86-64.so.2\0")
    elif kind == "text":
        path.write_text("#!/bin/sh\n")
    elif kind == "pipe":
        path.symlink_to("/dev/null")
    elif kind == "folder":
        path.mkdir()
    with pytest.raises(PycrictlError) as caught:
        check_static(path)
    assert (caught.value.hint is not None) == (kind in ("dynamic", "no gap"))


def test_a_process_that_has_ended() -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    with Helper() as helper, pytest.raises(PycrictlError, match="ended meanwhile"):
        helper.run(child, Tools({}, busybox="/bin/busybox"), ["sh"])


@pytest.mark.parametrize(
    "words",
    [
        ("debug", ""),
        ("debug",),
        ("debug", "--busybox", "/no/such", "web"),
        ("debug", "--busybox", "/bin/busybox", "--tools", "tools", "web"),
    ],
)
def test_nothing_is_asked_for_what_cannot_be_meant(
    fake: FakeServer, words: tuple[str, ...]
) -> None:
    done = Run("-r", fake.endpoint, *words)
    assert (done.code, done.stdout, fake.calls) == (1, "", [])
