from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.cli.run import Run, start

UPSTREAM = "unix:///run/none.sock"
INVALID = "pycrictl: invalid value for"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "pycrictl: no container runtime answers"),
        (["--upstream", "tcp://1.2.3.4:5"], f"{INVALID} '--upstream': the endpoint "),
        (["--retry-interval", "5"], f"{INVALID} '--retry-interval': "),
        (["--when-full", "x"], f"{INVALID} '--when-full': "),
        (["--max-parallel-image-pulls=-1"], f"{INVALID} '--max-parallel-image-pulls': "),
        (["--upstream", UPSTREAM, "--stream-address=0.0.0.0:1"], "pycrictl: stream-address: "),
        (["--upstream", UPSTREAM, "--listen", UPSTREAM], "pycrictl: upstream, listen and admin"),
    ],
)
def test_mistakes_are_one_line(words: list[str], line: str) -> None:
    run = Run("proxy", "--config", os.devnull, *words)
    assert run.code == 1
    assert run.stderr.startswith(line)
    assert len(run.stderr.splitlines()) <= 2


@pytest.mark.parametrize("limit", [0, 1])
def test_it_serves_until_sigterm(tmp_path: Path, limit: int) -> None:
    file = tmp_path / "p.toml"
    file.write_text(
        f'upstream = "{tmp_path}/u.sock"\nlisten = "{tmp_path}/d/l.sock"\n'
        f'admin-socket = "{tmp_path}/d/a.sock"\nmax-parallel-image-pulls = 5\n'
    )
    process = start("proxy", "--config", str(file), f"--max-parallel-image-pulls={limit}")
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        if "layers_unknown" in line:  # there is no runtime
            line = process.stderr.readline()
        assert line.startswith("level=INFO ready listen=")
        assert f" limit={limit} limit_origin=flag when_full=wait" in line
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=60)[1]
        assert process.returncode == 0
        assert rest.splitlines()[-1] == "level=INFO stopped"
    finally:
        process.kill()
        process.communicate()
