"""API discovery: the group, its resources, and the schema of ImagePull, from ``discovery.json``."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Final

from pycrictl.cluster.agent.api.names import GROUP_VERSION, KIND, VERSION, Document

MAX_TEXT: Final = 1024
"""The longest error, in characters."""

_SCHEMA: Final = f"/openapi/v3/apis/{GROUP_VERSION}"


def _read() -> dict[str, Document]:
    content = Path(__file__).with_name("discovery.json").read_bytes()
    document: dict[str, Document] = json.loads(content)
    # Clients cache a document by its URL, so the hash in it changes when the document does.
    digest = hashlib.sha256(content).hexdigest()[:32].upper()
    url = {"serverRelativeURL": f"{_SCHEMA}?hash={digest}"}
    return document | {"/openapi/v3": {"paths": {_SCHEMA.removeprefix("/openapi/v3/"): url}}}


DOCUMENTS: Final = _read()
"""The documents by the paths at which they are served."""


def _image_pull() -> Document:
    schemas = DOCUMENTS[_SCHEMA]["components"]["schemas"]
    metadata = schemas["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"]
    properties = schemas[f"dev.pycrictl.progress.{VERSION}.{KIND}"]["properties"]
    return {
        "type": "object",
        "required": ["metadata", "spec", "status"],
        "properties": {
            "metadata": {**metadata, "required": ["name", "namespace", "uid"]},
            "spec": properties["spec"],
            "status": properties["status"],
        },
    }


IMAGE_PULL: Final = _image_pull()
"""The schema of the objects that agents send each other."""
