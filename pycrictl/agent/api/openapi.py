"""The schemas of ImagePull and ContainerCopy, as ``kubectl explain`` reads them. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from pycrictl import __version__
from pycrictl.agent.api.names import (
    COPIES,
    COPY_KIND,
    GROUP,
    GROUP_VERSION,
    KIND,
    NAME,
    RESOURCE,
    SUBRESOURCE,
    VERSION,
    Document,
)
from pycrictl.pulls.documents import MAX_LAYERS
from pycrictl.pulls.model import SUMS

_PREFIX: Final = f"dev.pycrictl.progress.{VERSION}"
_METADATA: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"
MAX_TEXT: Final = 1024
"""Characters of an error."""

_BASE: Final = "#/components/schemas/"


def _text(description: str, **more: Any) -> Document:
    return {"type": "string", "description": description, **more}


def _name(description: str) -> Document:
    return _text(description, maxLength=512, pattern=f"^{NAME}$")


def _number(description: str) -> Document:
    return {"type": "integer", "format": "int64", "description": description}


def _flag(description: str, *, default: bool) -> Document:
    return {"type": "boolean", "description": description, "default": default}


_BYTES: Final = {
    "progressBytes": _number("Compressed bytes that have arrived."),
    "totalBytes": _number("Compressed bytes in all; 0 while unknown."),
    "extractedBytes": _number("Bytes unpacked."),
    "extractedTotalBytes": _number("Bytes to unpack in all."),
}

_LAYER: Final = {
    "type": "object",
    "description": "One layer of the image.",
    "properties": {
        "name": _text("What it is called from first to last."),
        "digest": _text("Its digest, once it is known."),
        "phase": _text(
            "How far it is.",
            enum=["waiting", "downloading", "extracting", "done", "present", "failed"],
        ),
        **_BYTES,
    },
}

_SPEC: Final = {
    "type": "object",
    "description": "Which pull it is.",
    "required": ["podName", "image"],
    "properties": {
        "podName": _name("The pod that needs the image."),
        "podUID": _text("Its UID.", maxLength=128),
        "containers": {
            "type": "array",
            "items": _name("A container, or an image volume."),
            "description": "Its containers and image volumes that use the image.",
        },
        "image": _text("The reference as the pod spells it."),
        "nodeName": _name("The node that pulls; absent before the pod has one."),
    },
}

_STATUS: Final = {
    "type": "object",
    "description": "How far the pull is.",
    "required": ["phase"],
    "properties": {
        "phase": _text(
            "Waiting: not begun as far as is known. Queued: waiting for a slot of the node's pull"
            " limit. Pulling, Extracting, Succeeded. Failed: the last attempt failed. BackOff: the"
            " kubelet waits before the next attempt.",
            enum=[
                *("Waiting", "Queued", "Pulling", "Extracting", "Succeeded", "Failed", "BackOff"),
            ],
        ),
        **_BYTES,
        "percent": {
            "type": "integer",
            "format": "int32",
            "maximum": 100,
            "description": "How much of the work, unpacking included, is done; absent if unknown.",
        },
        "bytesPerSecond": _number("Bytes downloaded a second."),
        "etaSeconds": _number("Seconds until the image is there; absent if unknown."),
        "queuePosition": _number("Place in the line for a slot, from 1; absent outside of it."),
        "layers": {
            "type": "array",
            "items": _LAYER,
            "maxItems": MAX_LAYERS,
            "description": "Its layers, as far as they are known.",
        },
        "sums": {
            "type": "object",
            "description": "All sums of the pull, as its progress stream has them.",
            "properties": {
                name: {"type": kind, "description": text} for name, (kind, text) in SUMS.items()
            },
        },
        "startTime": _text("When the pull began.", format="date-time"),
        "stalledSeconds": _number("For how long no byte has come; absent below ten seconds."),
        "error": _text("Why the pull failed, or why nothing is known of it."),
        "nextRetryTime": _text("When the kubelet tries again, if known.", format="date-time"),
        "kubeletReason": _text(
            "Why the container waits, such as ImagePullBackOff.", maxLength=MAX_TEXT
        ),
        "extractedEstimated": {
            "type": "boolean",
            "description": "The bytes to unpack in all are an estimate.",
        },
        "unknown": {
            "type": "boolean",
            "description": "The node did not answer; phase and error say what the pod shows.",
        },
    },
}

_COPY_SPEC: Final = {
    "type": "object",
    "description": "What is copied (the request of KEP-4582).",
    "required": ["direction", "path"],
    "properties": {
        "direction": _text("To the container, or From it.", enum=["To", "From"]),
        "container": _text("Its name; the pod's default container if it is empty."),
        "path": _text(
            "The path in the container: absolute, without an element '..'. To a container: what an"
            " archive with one entry is put at or into; a final '/.' means the directory that the"
            " archive is unpacked in."
        ),
        "size": _number("Bytes of the archive; only to a container, and required there."),
        "checksum": _number(
            "CRC-32 (IEEE 802.3) of the archive; only to a container, and required there."
        ),
        "options": {
            "type": "object",
            "description": "How it is copied.",
            "properties": {
                "archive": _flag("Keep owners, times and special bits.", default=False),
                "followLinks": _flag("Copy what the path points to.", default=False),
                "overwrite": _flag("Replace files that are there.", default=True),
                "early": _flag(
                    "From a container: begin before the archive is whole; its size and checksum"
                    " then come at its end.",
                    default=False,
                ),
            },
        },
    },
}

_COPY_STATUS: Final = {
    "type": "object",
    "description": "How far the copy is.",
    "properties": {
        "phase": _text(
            "Measuring: the archive is being made, from a container; what there is of it can be"
            " had. Transferring: its bytes are wanted, or there. Committing: it is put into its"
            " place. Succeeded. Failed."
        ),
        "offset": _number(
            "Bytes that are on the receiver's disk; the next connection goes on there."
        ),
        "size": _number("Bytes of the archive; absent while Measuring."),
        "checksum": _number("CRC-32 of the archive; absent while Measuring."),
        "expectedSize": _number("While Measuring: how long the archive will be, if known."),
        "expiresAt": _text(
            "When the copy is given up, unless there is a sign of its client before.",
            format="date-time",
        ),
        "message": _text("Why it failed."),
        "code": {
            "type": "integer",
            "format": "int32",
            "description": "The HTTP status of that, such as 410 for a replaced container.",
        },
        "outcome": {
            "type": "object",
            "description": "A metav1.Status: what was made, and what was left out and why.",
        },
    },
}

_IDENTITY: Final = {
    "apiVersion": _text("The version of this schema."),
    "kind": _text("What the object is."),
}


_OBJECT_META: Final = {
    "type": "object",
    "description": "What names an object.",
    "properties": {
        "name": _name(
            "Of an image pull: name of the pod, a dot, and its first container of the image. Of a"
            " copy: 32 hexadecimal digits made at random."
        ),
        "namespace": _name("The pod's namespace."),
        "uid": _text("Of an image pull: the pod's UID and a hash of the image.", maxLength=256),
        "resourceVersion": _text("Where a watch may go on from.", pattern="^[0-9]{1,19}$"),
        "creationTimestamp": _text(
            "Since when the image is waited for; when the copy began.", format="date-time"
        ),
    },
}

IMAGE_PULL: Final[Document] = {
    "type": "object",
    "required": ["metadata", "spec", "status"],
    "properties": {
        "metadata": {**_OBJECT_META, "required": ["name", "namespace", "uid"]},
        "spec": _SPEC,
        "status": _STATUS,
    },
}


def _schemas() -> Document:
    pull = f"{_PREFIX}.{KIND}"
    return {
        pull: {
            "type": "object",
            "description": "The pull of an image that a pod needs. Read-only: made by the nodes.",
            "properties": {
                **_IDENTITY,
                "metadata": _reference(f"{_METADATA}.ObjectMeta", "Names the object."),
                "spec": _SPEC,
                "status": _STATUS,
            },
            **_kind(KIND),
        },
        f"{pull}List": {
            "type": "object",
            "description": "A list of image pulls.",
            "required": ["items"],
            "properties": {
                **_IDENTITY,
                "metadata": _reference(f"{_METADATA}.ListMeta", "Of the list."),
                "items": {"type": "array", "items": {"$ref": _BASE + pull}},
            },
            **_kind(f"{KIND}List"),
        },
        f"{_PREFIX}.{COPY_KIND}": {
            "type": "object",
            "description": (
                "A copy of files to or from a container, of its user alone. It is not got or listed"
                f" by kubectl: pods/POD/{COPIES} is for kubectl container-cp."
            ),
            "properties": {
                **_IDENTITY,
                "metadata": _reference(f"{_METADATA}.ObjectMeta", "Names the copy."),
                "spec": _COPY_SPEC,
                "status": _COPY_STATUS,
            },
            **_kind(COPY_KIND),
        },
        f"{_METADATA}.ObjectMeta": _OBJECT_META,
        f"{_METADATA}.ListMeta": {
            "type": "object",
            "description": "What is said of a list as a whole.",
            "properties": {"resourceVersion": _text("Where a watch may go on from.")},
        },
    }


def _kind(kind: str) -> Document:
    return {"x-kubernetes-group-version-kind": [{"group": GROUP, "version": VERSION, "kind": kind}]}


def _reference(name: str, description: str) -> Document:
    return {"allOf": [{"$ref": _BASE + name}], "default": {}, "description": description}


_POD: Final = "namespaces/{namespace}/pods/{name}"
_PATHS: Final = (
    (RESOURCE, "list", "listImagePullForAllNamespaces", "List all.", KIND),
    (f"namespaces/{{namespace}}/{RESOURCE}", "list", "listNamespacedImagePull", "List some.", KIND),
    (
        *(f"namespaces/{{namespace}}/{RESOURCE}/{{name}}", "get", "readNamespacedImagePull"),
        *("Get one.", KIND),
    ),
    (
        *(f"{_POD}/{SUBRESOURCE}", "get", "readNamespacedPodImagepullprogress"),
        *("Follow the pulls of a pod.", KIND),
    ),
    # Here kubectl explain looks for the kind.
    (
        *(f"namespaces/{{namespace}}/{COPIES}/{{name}}", "get", "readNamespacedContainerCopy"),
        *("Is refused: see below pods.", COPY_KIND),
    ),
    (
        *(f"{_POD}/{COPIES}", "post", "createNamespacedPodContainercopies"),
        *("Begin a copy.", COPY_KIND),
    ),
    (
        *(f"{_POD}/{COPIES}/{{session}}", "get", "readNamespacedPodContainercopies"),
        *("Get one's own copy.", COPY_KIND),
    ),
    (
        *(f"{_POD}/{COPIES}/{{session}}/commit", "post", "commitNamespacedPodContainercopies"),
        *("Put it into its place.", COPY_KIND),
    ),
    (
        *(f"{_POD}/{COPIES}/{{session}}/abandon", "post", "abandonNamespacedPodContainercopies"),
        *("Give it up.", COPY_KIND),
    ),
)
"""Each with its action, the operation's name, a description, and the kind."""


def _path(path: str, action: str, name: str, description: str, kind: str) -> Document:
    method = "post" if action == "post" else "get"
    schema = {"$ref": f"{_BASE}{_PREFIX}.{kind}{'List' if action == 'list' else ''}"}
    answer = {"description": "OK", "content": {"application/json": {"schema": schema}}}
    return {
        method: {
            "description": description,
            "operationId": name,
            "responses": {"201" if action == "post" else "200": answer},
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": {"group": GROUP, "version": VERSION, "kind": kind},
        },
        "parameters": [
            {"name": word, "in": "path", "required": True, "schema": {"type": "string"}}
            for word in ("namespace", "name", "session")
            if f"{{{word}}}" in path
        ],
    }


def document() -> Document:
    return {
        "openapi": "3.0.0",
        "info": {"title": "pycrictl agent", "version": __version__},
        "paths": {f"/apis/{GROUP_VERSION}/{row[0]}": _path(*row) for row in _PATHS},
        "components": {"schemas": _schemas()},
    }


def index() -> Document:
    """Return where the document is; the hash changes when it does."""
    digest = hashlib.sha256(json.dumps(document()).encode()).hexdigest()[:32].upper()
    url = f"/openapi/v3/apis/{GROUP_VERSION}?hash={digest}"
    return {"paths": {f"apis/{GROUP_VERSION}": {"serverRelativeURL": url}}}
