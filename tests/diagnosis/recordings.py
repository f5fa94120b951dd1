"""What was recorded on a real cluster and its node, to tell causes without a cluster.

Each line of a file is one object as ``kubectl get KINDS --all-namespaces --output=json`` prints it
(without ``managedFields`` and normal Events), an answer of the CRI in protobuf's JSON with the name
of its call as ``kind``, a line of the journal, or the end of a log. The first line has the time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.json_format import ParseDict

from pycrictl._proto import cri_pb2
from tests.fakecri.server import FakeServer

FOLDER = Path(__file__).parent / "recorded"

Document = dict[str, Any]


class Recording(NamedTuple):
    at_s: float
    documents: Sequence[Document]

    def of(self, *kinds: str) -> list[Document]:
        return [document for document in self.documents if document["kind"] in kinds]

    def offer(self, fake: FakeServer) -> None:
        """Make a fake runtime answer as the recorded one did."""
        for name in ("ListPodSandbox", "ListContainers", "Status", "ImageFsInfo"):
            (document,) = self.of(name)
            fake.offer(name, _message(name, document))
        images = {tag for image in self.of("ListImages")[0]["images"] for tag in image["repo_tags"]}
        for name in ("PodSandboxStatus", "ContainerStatus"):
            fake.offer(
                name,
                _by_id(
                    {
                        document["status"]["id"]: _message(name, document)
                        for document in self.of(name)
                    }
                ),
            )

        def image(request: Any, _: object) -> cri_pb2.ImageStatusResponse:
            image = cri_pb2.Image(id="1", size=1) if request.image.image in images else None
            return cri_pb2.ImageStatusResponse(image=image)

        fake.offer("ImageStatus", image)

    def write_journalctl(self, folder: Path) -> None:
        """Make a program that prints the recorded journal."""
        names = {"at_s": "__REALTIME_TIMESTAMP", "unit": "_SYSTEMD_UNIT", "message": "MESSAGE"}
        folder.mkdir()
        with (folder / "lines").open("w") as file:
            for document in self.of("JournalLine"):
                document["at_s"] = str(int(document["at_s"] * 1e6))
                print(json.dumps({name: document[key] for key, name in names.items()}), file=file)
        program = folder / "journalctl"
        program.write_text(f"#!/bin/sh\nexec /bin/cat {folder / 'lines'}\n")
        program.chmod(0o755)

    def write_files(self, root: Path) -> None:
        for document in self.of("File"):
            file = root / document["path"].lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(document["text"])


def recording(name: str) -> Recording:
    header, *documents = map(json.loads, (FOLDER / f"{name}.jsonl").read_text().splitlines())
    return Recording(header["at_s"], documents)


def _by_id(answers: dict[str, Any]) -> Callable[[Any, object], Any]:
    """Return a maker of answers to requests, whose first field is the ID."""
    return lambda request, _: answers[request.ListFields()[0][1]]


def _message(name: str, document: Document) -> Any:
    fields = {key: value for key, value in document.items() if key != "kind"}
    return ParseDict(fields, getattr(cri_pb2, f"{name}Response")(), ignore_unknown_fields=True)
