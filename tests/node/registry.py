"""Debian's docker-registry on a free loopback port, filled by skopeo."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from .daemon import Daemon
from .images import Image, Layout

_CONFIG = """\
version: 0.1
log: {{level: info, accesslog: {{disabled: true}}}}
storage:
  filesystem: {{rootdirectory: {folder}/storage}}
  maintenance: {{uploadpurging: {{enabled: false}}}}
http: {{addr: 127.0.0.1:0}}
"""


class Registry:
    """A registry whose files and configuration are in `folder`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        config = folder / "config.yml"
        config.write_text(_CONFIG.format(folder=folder))
        self._daemon = Daemon(["docker-registry", "serve", config], folder / "log")
        self.port = 0

    @property
    def host(self) -> str:
        """`127.0.0.1:PORT`, as it stands at the start of an image reference."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self._daemon.start(self._listens)

    def stop(self) -> None:
        self._daemon.terminate()

    def push(self, layout: Layout, image: Image) -> None:
        """Copies an image with all its platforms, digests unchanged."""
        subprocess.run(
            [
                "skopeo",
                "--insecure-policy",
                "copy",
                "--all",
                "--preserve-digests",
                "--quiet",
                "--dest-tls-verify=false",
                f"oci:{layout.folder}:{image.name}",
                f"docker://{self.host}/{image.name}",
            ],
            check=True,
            timeout=120,
        )

    def _listens(self) -> bool:
        # The kernel chose the port, so no other program can have taken it meanwhile.
        found = re.search(r"listening on 127\.0\.0\.1:(\d+)", self._daemon.log_path.read_text())
        if found:
            self.port = int(found[1])
        return found is not None
