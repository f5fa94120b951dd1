"""What ends a ``tar`` that nobody reads: by the programs that containers have."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from pycrictl.copy.exec.packing import watchdog
from tests.waiting import wait_until

PROGRAMS = ("xargs", "find", "grep", "sleep", "start-stop-daemon", "pkill")


@pytest.mark.parametrize(
    ("kind", "missing"),
    [
        ("busybox", "pkill"),
        ("gnu", "pkill"),
        ("gnu", "start-stop-daemon"),
    ],
)
def test_what_bears_the_mark_ends(tmp_path: Path, kind: str, missing: str) -> None:
    (tmp_path / "bin").mkdir()
    for name in PROGRAMS:
        program = shutil.which("busybox" if kind == "busybox" else name, path="/usr/bin:/usr/sbin")
        if name != missing:
            if program is None:
                pytest.skip(f"there is no {name} here")
            (tmp_path / "bin" / name).symlink_to(program)
    (tmp_path / "f").write_bytes(bytes(1_000_000))
    marks = ("/.//.//./././/.", "/.//.//././././.")
    tars = [
        subprocess.Popen(
            ["tar", "-c", "-f", "-", "-C", f"{tmp_path}{mark}", "f"], stdout=subprocess.PIPE
        )
        for mark in marks
    ]
    try:
        with subprocess.Popen(
            [tmp_path / "bin/xargs", *watchdog(marks[0])[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": str(tmp_path / "bin")},
        ) as dog:
            time.sleep(0.3)
            assert [tar.poll() for tar in tars] == [None, None]
            assert dog.stdin is not None
            dog.stdin.close()
            wait_until(lambda: tars[0].poll() is not None)
        assert [tar.poll() for tar in tars] == [-signal.SIGKILL, None]
    finally:
        for tar in tars:
            tar.kill()
            tar.communicate()
