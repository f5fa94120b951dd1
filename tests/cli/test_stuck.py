"""Ctrl-C where the program is held in the kernel, by a file system that does not answer."""

from __future__ import annotations

import select
import signal
import subprocess
from pathlib import Path

from tests.cli.run import start
from tests.copy.hungfs import hung
from tests.copy.node.test_on_node import ID
from tests.copy.trees import needs_root
from tests.fakecri.server import FakeServer
from tests.proxy.copier import pretended

pytestmark = needs_root


def test_copies_that_a_file_system_holds_can_be_ended(fake: FakeServer, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()

    def copy(folder: Path) -> subprocess.Popen[str]:
        words = ("cp", "--method", "node", f"{folder}/file", f"{ID}:/to")
        return start("-r", fake.endpoint, *words)

    with (
        pretended(fake, tmp_path / "root"),
        hung(first) as device,
        hung(second) as other,
        copy(first) as interrupted,
        copy(second) as terminated,
    ):
        try:
            for asked in (device, other):
                assert select.select([asked], [], [], 60)[0], "nobody asks it for anything"
            interrupted.send_signal(signal.SIGINT)
            terminated.send_signal(signal.SIGTERM)
            _, told = interrupted.communicate(timeout=60)
            _, nothing = terminated.communicate(timeout=60)
        finally:
            interrupted.kill()
            terminated.kill()
    assert told == "pycrictl: interrupted\nhint: a file system is not responding\n"
    assert nothing == ""
    assert (interrupted.returncode, terminated.returncode) == (130, 143)
    assert list((tmp_path / "root/to").iterdir()) == []
