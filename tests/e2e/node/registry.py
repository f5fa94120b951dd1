"""Debian's docker-registry on the loopback, behind a slow and unreliable network."""

from __future__ import annotations

import http.client
import json
import re
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, Self
from urllib.parse import urlsplit

from .daemon import Daemon
from .images import Image, Layout
from .throttle import Throttle

_CONFIG = """\
version: 0.1
log: {{level: info, accesslog: {{disabled: true}}}}
storage:
  {storage}
  maintenance: {{uploadpurging: {{enabled: false}}}}
http: {{addr: 127.0.0.1:0}}
"""


class Registry(Throttle):
    """A context manager; its files and configuration are in `folder`.

    Images are pulled through `host`, and pushed to `pushed_to`.
    """

    def __init__(self, folder: Path, *, in_memory: bool = False) -> None:
        folder.mkdir(parents=True)
        config = folder / "config.yml"
        files = f"filesystem: {{rootdirectory: {folder}/storage}}"
        config.write_text(_CONFIG.format(storage="inmemory: {}" if in_memory else files))
        self._daemon = Daemon(["docker-registry", "serve", config], folder / "log")
        self._repositories: dict[str, set[str]] = {}
        super().__init__()

    def __enter__(self) -> Self:
        self._daemon.start(self._listens)
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._daemon.terminate()

    @property
    def pushed_to(self) -> str:
        return f"127.0.0.1:{self.upstream_port}"

    def push(self, layout: Layout, image: Image) -> None:
        repository, _, tag = image.name.rpartition(":")
        with closing(_Connection(self.upstream_port, repository)) as connection:
            self._push_manifest(connection, layout, image.digest, reference=tag)

    def _push_manifest(
        self, connection: _Connection, layout: Layout, digest: str, *, reference: str
    ) -> None:
        content = layout.blob(digest).read_bytes()
        manifest = json.loads(content)
        for descriptor in manifest.get("manifests", ()):
            self._push_manifest(
                connection, layout, descriptor["digest"], reference=descriptor["digest"]
            )
        if "config" in manifest:
            for descriptor in (manifest["config"], *manifest["layers"]):
                self._push_blob(connection, layout, descriptor["digest"])
        connection.put(f"manifests/{reference}", content, manifest["mediaType"])

    def _push_blob(self, connection: _Connection, layout: Layout, digest: str) -> None:
        homes = self._repositories.setdefault(digest, set())
        if connection.repository not in homes:
            connection.put_blob(digest, layout.blob(digest), known_in=next(iter(homes), ""))
            homes.add(connection.repository)

    def _listens(self) -> bool:
        # The kernel chose the port, so no other program can have taken it meanwhile.
        match = re.search(r"listening on 127\.0\.0\.1:(\d+)", self._daemon.log_path.read_text())
        if match:
            self.upstream_port = int(match[1])
        return match is not None


class _Connection:
    def __init__(self, port: int, repository: str) -> None:
        self.repository = repository
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=60, blocksize=1 << 20)

    def put(self, path: str, content: bytes, media_type: str) -> None:
        path = f"/v2/{self.repository}/{path}"
        self._ask("PUT", path, content, {"Content-Type": media_type}, expected=201)

    def put_blob(self, digest: str, path: Path, *, known_in: str) -> None:
        """Upload a blob, or mount it from a repository that has it."""
        more = f"?mount={digest}&from={known_in}" if known_in else ""
        expected = 201 if known_in else 202
        uploads = f"/v2/{self.repository}/blobs/uploads/{more}"
        location = urlsplit(self._ask("POST", uploads, b"", {}, expected=expected))
        if not known_in:
            headers = {
                "Content-Type": "application/octet-stream",
                "Content-Length": str(path.stat().st_size),
            }
            place = f"{location.path}?{location.query}&digest={digest}"
            with path.open("rb") as file:
                self._ask("PUT", place, file, headers, expected=201)

    def close(self) -> None:
        self._http.close()

    def _ask(
        self,
        method: str,
        path: str,
        body: bytes | BinaryIO,
        headers: dict[str, str],
        *,
        expected: int,
    ) -> str:
        self._http.request(method, path, body, headers)
        answer = self._http.getresponse()
        content = answer.read()
        assert answer.status == expected, (method, path, answer.status, content)
        return answer.headers["Location"] or ""
