"""The real kubectl, with a kubeconfig."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import WAIT_S

Done = subprocess.CompletedProcess[str]


class Kubectl:
    """Runs kubectl; its home and cache are in ``folder``.

    Args:
        kubeconfig: the path of the file.
        folder: an existing folder.
        program: the name or path of kubectl.
    """

    def __init__(self, kubeconfig: Path, folder: Path, program: str = "kubectl") -> None:
        self.program = shutil.which(program)
        if self.program is None:
            pytest.fail("kubectl missing: run tests/e2e/node/install.sh")
        self.kubeconfig = kubeconfig
        # The folder of its cache, too: discovery is read once a run.
        self.environ = {**os.environ, "HOME": str(folder), "KUBECONFIG": str(kubeconfig)}
        self.environ["KUBECACHEDIR"] = str(folder / "cache")

    @property
    def version(self) -> int:
        """The minor version of kubectl."""
        answer = json.loads(self.good("version", "--client", "-o", "json"))
        return int(re.sub(r"\D", "", answer["clientVersion"]["minor"]))

    def needs(self, minor: int) -> None:
        """Skip the test if kubectl is older than 1.``minor``: Debian 12 has 1.20."""
        if self.version < minor:
            pytest.skip(f"kubectl is 1.{self.version}, and this came with 1.{minor}")

    def __call__(self, *words: str, stdin: str | None = None) -> Done:
        return subprocess.run(
            [str(self.program), *words],
            env=self.environ,
            input=stdin or "",
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )

    def good(self, *words: str, stdin: str | None = None) -> str:
        done = self(*words, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def bad(self, *words: str) -> str:
        done = self(*words)
        assert done.returncode != 0, done.stdout
        return done.stderr

    def document(self, *words: str) -> Any:
        return json.loads(self.good(*words, "-o", "json"))

    @contextmanager
    def running(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            [str(self.program), *words],
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.terminate()
