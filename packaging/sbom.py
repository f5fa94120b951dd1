"""List what the standalone program contains, as a CycloneDX document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import bundle
import interpreter
import tree
from standalone import Program

MEDIA_TYPE: Final = "application/vnd.cyclonedx+json"


def document(program: Program, packages: dict[str, str]) -> bytes:
    """Return the document, the same for the same program.

    Args:
        packages: Debian's in an image, with their versions.
    """
    components = [
        *(_component(f"pkg:pypi/{name}@{version}") for name, version in _wheels()),
        *(
            _component(f"pkg:deb/debian/{name}@{version}?arch=source")
            for name, version in interpreter.contents(program.root).items()
        ),
        *(_component(f"pkg:deb/debian/{name}@{version}") for name, version in packages.items()),
    ]
    own = _component(f"pkg:pypi/pycrictl@{program.version}")
    made = {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(program.time_s, UTC).isoformat(),
            "component": {
                **own,
                "type": "application",
                "externalReferences": [{"type": "website", "url": tree.HOMEPAGE}],
            },
        },
        "components": components,
        "dependencies": [
            {"ref": own["bom-ref"], "dependsOn": [each["bom-ref"] for each in components]}
        ],
    }
    return json.dumps(made, indent=1).encode() + b"\n"


def _component(url: str) -> dict[str, str]:
    """Return a component by its package URL."""
    name, _, version = url.partition("?")[0].rpartition("/")[2].partition("@")
    return {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}


def _wheels() -> Iterator[tuple[str, str]]:
    for line in bundle.PINS.read_text().splitlines():
        if not line.startswith(("#", " ")):
            name, _, version = line.removesuffix(" \\").partition("==")
            yield name, version
