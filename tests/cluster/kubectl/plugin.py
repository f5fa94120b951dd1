"""Runs the plugin in processes of its own, with the real kubectl."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT_S = 60
SCRIPT = f"#!{sys.executable}\nfrom pycrictl.__main__ import run\nrun()\n"
_NAMES = ("kubectl-image_pull_progress", "kubectl-why")


@dataclass
class Ended:
    code: int
    stdout: str
    stderr: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stdout.splitlines()]


@dataclass
class Plugin:
    """The plugin; its folders are in ``runtime``."""

    environ: dict[str, str]
    runtime: Path
    name: str = "kubectl-image_pull_progress"

    @property
    def _program(self) -> str:
        return f"{self.environ['PATH'].partition(':')[0]}/{self.name}"

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self._program, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environ,
        )

    def run(self, *words: str) -> Ended:
        return self._run(self._program, *words)

    def by_kubectl(self, *words: str) -> Ended:
        return self._run("kubectl", *words)

    def _run(self, *words: str) -> Ended:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self.environ,
            timeout=LIMIT_S,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def proxies(self) -> list[int]:
        return proxies_of(self.runtime)


def plugin_in(folder: Path, runtime: Path, kubeconfig: Path) -> Plugin:
    """Install the plugins' programs in a folder, to run them with a kubeconfig."""
    programs = folder / "bin"
    programs.mkdir()
    for name in _NAMES:
        (programs / name).write_text(SCRIPT)
        (programs / name).chmod(0o755)
    environ = {
        "HOME": str(folder),
        "KUBECACHEDIR": str(folder / "cache"),
        "KUBECONFIG": str(kubeconfig),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "TMPDIR": str(runtime),
    }
    return Plugin(environ, runtime)


def proxies_of(runtime: Path) -> list[int]:
    """Return the PIDs of ``kubectl proxy`` processes that listen in a plugin's folders."""
    objects = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes()
            if b"\0proxy\0" in words and str(runtime).encode() in words:
                objects.append(int(folder.name))
    return objects
