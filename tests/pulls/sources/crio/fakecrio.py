"""A fake CRI-O: a process of that name on a socket, whose pulls are files that it has open.

The process is told on its standard input which files to write; the test itself plays
containers/storage, which commits layers and removes the files of finished pulls, and the journal.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from pycrictl._proto import cri_pb2
from pycrictl.node.journal import JournalLine
from tests.fakecri import serve

RPC_ID = "763c55fc-a0e6-4593-97e5-a0f4a387f1"


class FakePull:
    def __init__(self, crio: FakeCrio, number: int) -> None:
        self._crio = crio
        self.folder = crio.big_files / f"container_images_storage{number}00{number}"
        self.folder.mkdir()

    def write(self, number: int, size_bytes: int, *, closed: bool = False) -> None:
        self._crio.tell("write", str(self.folder / str(number)), size_bytes, closed)

    def end(self) -> None:
        """Close all files and remove the directory."""
        self._crio.tell("end", str(self.folder))
        shutil.rmtree(self.folder)


class FakeCrio:
    """The process, as a test sees it.

    Attributes:
        path: the path of its socket.
        journal: the lines that it has written there.
    """

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "s")
        self.endpoint = f"unix://{self.path}"
        self.big_files = folder / "big"
        self.store = folder / "storage"
        self.errors = folder / "crio.log"
        self.journal: list[JournalLine] = []
        self._folder = folder
        self._pulls = 0
        self._layers: list[dict[str, Any]] = []
        self._images: list[dict[str, Any]] = []
        self.big_files.mkdir()
        self.start()

    def start(self) -> None:
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.pulls.sources.crio.fakecrio", str(self._folder)],
                cwd=Path(__file__).parents[3],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n", self.errors.read_text()

    def kill(self) -> None:
        """End it like a crash, which leaves its files."""
        self.process.kill()
        self.process.communicate()

    def tell(self, *words: object) -> None:
        """Send it a command, and return when that is done."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{json.dumps(words)}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n", self.errors.read_text()

    def pull(self) -> FakePull:
        self._pulls += 1
        return FakePull(self, self._pulls)

    def say(self, message: str, call: int = 0, *, ago_s: float = 0.0) -> None:
        """Write a line of a PullImage call to the journal."""
        text = f'level=info msg="{message}" id={RPC_ID}{call:02}'
        self.journal.append(JournalLine(time.time() - ago_s, "crio", text))

    def commit(self, digest: str, size_bytes: int, *, created_s: float | None = None) -> None:
        """Store a layer."""
        created = {"created": datetime.fromtimestamp(created_s or time.time(), UTC).isoformat()}
        layer = {"id": f"id-{digest}", "compressed-diff-digest": digest}
        self._layers.append({**layer, "compressed-size": size_bytes, **created})
        self._put("layer", self._layers)

    def commit_image(self, image_id: str, *names: str) -> None:
        self._images.append({"id": image_id, "names": names})
        self._put("image", self._images)

    def _put(self, kind: str, document: object) -> None:
        path = self.store / f"overlay-{kind}s" / f"{kind}s.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(document))
        new.rename(path)


@contextmanager
def fake_crio() -> Iterator[FakeCrio]:
    folder = Path(tempfile.mkdtemp(prefix="fakecrio-"))
    crio = FakeCrio(folder)
    try:
        yield crio
    finally:
        crio.kill()
        shutil.rmtree(folder)


def main(folder: Path) -> None:
    Path("/proc/self/comm").write_text("crio")
    opened: dict[str, BinaryIO] = {}
    (folder / "s").unlink(missing_ok=True)

    with serve(str(folder / "s")) as server:
        version = cri_pb2.VersionResponse(runtime_name="cri-o", runtime_version="1.37.0")
        server.offer("Version", version)
        usage = cri_pb2.ImageFsInfoResponse()
        usage.image_filesystems.add().fs_id.mountpoint = str(folder / "storage/overlay-images")
        server.offer("ImageFsInfo", usage)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        for line in sys.stdin:
            action, path, *more = json.loads(line)
            if action == "write":
                if path not in opened:
                    opened[path] = Path(path).open("wb")
                os.truncate(path, more[0])
                if more[1]:
                    opened.pop(path).close()
            else:
                for name in [name for name in opened if name.startswith(path)]:
                    opened.pop(name).close()
            sys.stdout.write("done\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
