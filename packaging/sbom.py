"""List the contents of a release: a CycloneDX document of the bundled projects, in JSON.

It is made from the files of pins, the wheels that they name, and the interpreter's sources. It
contains no time or random number: the same sources give the same document.
"""

from __future__ import annotations

import json
import re
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from email.message import Message
from email.parser import HeaderParser
from typing import Any, Final
from urllib.parse import quote, unquote

import bundle
from tree import HOMEPAGE

MEDIA_TYPE: Final = "application/vnd.cyclonedx+json"

_SPDX: Final = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "ISC License": "ISC",
    "MIT License": "MIT",
}
"""Names of licenses in some wheels, and their SPDX identifiers."""

_INTERPRETER: Final = {
    "gcc-": ("libstdc++", "GPL-3.0-with-GCC-exception"),
    "libffi": ("libffi", "MIT"),
    "openssl": ("OpenSSL", "Apache-2.0"),
    "python": ("CPython", "PSF-2.0"),
    "xz-utils": ("liblzma", "0BSD"),
    "zlib": ("zlib", "Zlib"),
}
"""Projects in the interpreter, and their licenses, by Debian's source packages."""

_OF_IMAGE: Final = "In the image only."

_UPSTREAM: Final = re.compile(r"(?:\d+:)?(?:.*\+really)?(.*)-[^-]*")
"""A Debian version, with the project's own version as the group."""


def document(
    version: str,
    compiled: Mapping[str, str],
    packages: Mapping[str, str],
) -> bytes:
    """Return the document of this version of the program.

    Args:
        version: of the program.
        compiled: versions of the interpreter's parts, by Debian's source packages.
        packages: Debian packages in the image, with their versions.
    """
    program = {
        "type": "application",
        "bom-ref": f"pkg:pypi/pycrictl@{version}",
        "name": "pycrictl",
        "version": version,
        "purl": f"pkg:pypi/pycrictl@{version}",
        "licenses": [{"license": {"id": "Apache-2.0"}}],
        "authors": [{"name": "the pycrictl authors"}],
        "externalReferences": [{"type": "vcs", "url": HOMEPAGE}],
    }
    components = [
        *_bundled(bundle.PROGRAM),
        *({**part, "description": _OF_IMAGE} for part in _bundled(bundle.AGENT)),
        *_compiled(compiled),
        *(
            {
                **_component(f"pkg:deb/debian/{name}@{_quoted(number)}"),
                "description": _OF_IMAGE,
            }
            for name, number in packages.items()
        ),
    ]
    depends = [component["bom-ref"] for component in components]
    document: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": program},
        "components": components,
        "dependencies": [{"ref": program["bom-ref"], "dependsOn": depends}],
    }
    name = json.dumps(document, sort_keys=True)
    document["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_URL, f"{HOMEPAGE}#{name}").urn
    return (json.dumps(document, indent=2) + "\n").encode()


def pins(*bundled: bundle.Pins) -> dict[str, tuple[str, list[str]]]:
    """Return version and SHA-256 of the wheels of each bundled project."""
    pins: dict[str, tuple[str, list[str]]] = {}
    for bundle_ in bundled:
        for entry in re.split(r"\n(?=[^ #])", bundle_.file.read_text("utf-8")):
            if pin := re.match(r"([\w.-]+)==([\w.]+)", entry):
                pins[pin[1]] = pin[2], re.findall(r"sha256:([0-9a-f]{64})", entry)
    return pins


def _bundled(bundled: bundle.Pins) -> Iterator[dict[str, Any]]:
    about = {_key(head["Name"]): head for head in _metadata()}
    for name, (version, sums) in pins(bundled).items():
        head = about[_key(name)]
        text = head["License-Expression"] or head["License"] or _classified(head)
        yield {
            **_component(f"pkg:pypi/{name}@{version}"),
            "licenses": [{"expression": _SPDX.get(text, text)}],
            "hashes": [{"alg": "SHA-256", "content": digest} for digest in sums],
        }


def _classified(head: Message) -> str:
    """Return the license of a wheel that names it only by a classifier."""
    of_licenses = "License :: OSI Approved :: "
    (classifier,) = (
        line for line in head.get_all("Classifier", ()) if line.startswith(of_licenses)
    )
    return classifier.removeprefix(of_licenses)


def _compiled(sources: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for source, version in sources.items():
        component = _component(f"pkg:deb/debian/{source}@{_quoted(version)}?arch=source")
        name, license_id = _INTERPRETER.get(source.rstrip("0123456789."), (source, ""))
        upstream = _UPSTREAM.fullmatch(version)
        component |= {"name": name, "version": upstream[1] if upstream else version}
        if license_id:
            component["licenses"] = [{"license": {"id": license_id}}]
        component["description"] = "In the standalone programs, the packages and the image only."
        yield component


def _component(purl: str) -> dict[str, Any]:
    """Return a component by its package URL."""
    name, _, version = purl.partition("?")[0].rpartition("/")[2].partition("@")
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": unquote(version),
        "purl": purl,
    }


def _quoted(version: str) -> str:
    """Return a version quoted for package URLs, in which a plus means a space."""
    return quote(version, safe=":~")


def _metadata() -> Iterator[Message]:
    for wheel in bundle.WHEELS.rglob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (
                entry for entry in archive.namelist() if entry.endswith(".dist-info/METADATA")
            )
            yield HeaderParser().parsestr(archive.read(name).decode())


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
