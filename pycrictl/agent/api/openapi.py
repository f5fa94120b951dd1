"""The schema of ImagePull, as ``kubectl explain`` reads it: OpenAPI v3, and v2. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from pycrictl import __version__
from pycrictl.agent.api.names import (
    GROUP,
    GROUP_VERSION,
    KIND,
    RESOURCE,
    SUBRESOURCE,
    VERSION,
    Document,
)

_PREFIX: Final = f"dev.pycrictl.progress.{VERSION}"
_METADATA: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"
_V3: Final = "#/components/schemas/"
_V2: Final = "#/definitions/"


def _text(description: str, **more: Any) -> Document:
    return {"type": "string", "description": description, **more}


def _number(description: str) -> Document:
    return {"type": "integer", "format": "int64", "description": description}


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
        "phase": _text("waiting, downloading, extracting, done, present or failed."),
        **_BYTES,
    },
}

_SPEC: Final = {
    "type": "object",
    "description": "Which pull it is.",
    "properties": {
        "podName": _text("The pod that needs the image."),
        "podUID": _text("Its UID."),
        "containers": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Its containers and image volumes that use the image.",
        },
        "image": _text("The reference as the pod spells it."),
        "nodeName": _text("The node that pulls; absent before the pod has one."),
    },
}

_STATUS: Final = {
    "type": "object",
    "description": "How far the pull is.",
    "properties": {
        "phase": _text(
            "Waiting: not begun as far as is known. Queued: waiting for a slot of the node's pull"
            " limit. Pulling, Extracting, Succeeded. Failed: the last attempt failed. BackOff: the"
            " kubelet waits before the next attempt."
        ),
        **_BYTES,
        "percent": {
            "type": "integer",
            "format": "int32",
            "description": "How much of the work, unpacking included, is done; absent if unknown.",
        },
        "bytesPerSecond": _number("Bytes downloaded a second."),
        "etaSeconds": _number("Seconds until the image is there; absent if unknown."),
        "queuePosition": _number("Place in the line for a slot, from 1; absent outside of it."),
        "layers": {
            "type": "array",
            "items": _LAYER,
            "description": "Its layers, as far as they are known.",
        },
        "startTime": _text("When the pull began.", format="date-time"),
        "stalledSeconds": _number("For how long no byte has come; absent below ten seconds."),
        "error": _text("Why the pull failed, or why nothing is known of it."),
        "nextRetryTime": _text("When the kubelet tries again, if known.", format="date-time"),
        "kubeletReason": _text("Why the container waits, such as ImagePullBackOff."),
        "unknown": {
            "type": "boolean",
            "description": "The node did not answer; phase and error say what the pod shows.",
        },
    },
}

_IDENTITY: Final = {
    "apiVersion": _text("The version of this schema."),
    "kind": _text("What the object is."),
}


def _schemas(base: str) -> Document:
    kind = {"group": GROUP, "version": VERSION}
    pull = f"{_PREFIX}.{KIND}"
    return {
        pull: {
            "type": "object",
            "description": "The pull of an image that a pod needs. Read-only: made by the nodes.",
            "properties": {
                **_IDENTITY,
                "metadata": _reference(base, f"{_METADATA}.ObjectMeta", "Names the object."),
                "spec": _SPEC,
                "status": _STATUS,
            },
            "x-kubernetes-group-version-kind": [{**kind, "kind": KIND}],
        },
        f"{pull}List": {
            "type": "object",
            "description": "A list of image pulls.",
            "required": ["items"],
            "properties": {
                **_IDENTITY,
                "metadata": _reference(base, f"{_METADATA}.ListMeta", "Of the list."),
                "items": {"type": "array", "items": {"$ref": base + pull}},
            },
            "x-kubernetes-group-version-kind": [{**kind, "kind": f"{KIND}List"}],
        },
        f"{_METADATA}.ObjectMeta": {
            "type": "object",
            "description": "What names an object.",
            "properties": {
                "name": _text("Name of the pod, a dot, and its first container of the image."),
                "namespace": _text("The pod's namespace."),
                "uid": _text("The pod's UID and a hash of the image."),
                "resourceVersion": _text("Where a watch may go on from."),
                "creationTimestamp": _text("Since when the image is waited for."),
            },
        },
        f"{_METADATA}.ListMeta": {
            "type": "object",
            "description": "What is said of a list as a whole.",
            "properties": {"resourceVersion": _text("Where a watch may go on from.")},
        },
    }


def _reference(base: str, name: str, description: str) -> Document:
    if base == _V2:  # a reference stands alone there
        return {"$ref": base + name}
    return {"allOf": [{"$ref": base + name}], "default": {}, "description": description}


def _paths(base: str, version: int) -> Document:
    root = f"/apis/{GROUP_VERSION}"
    one, many = f"{_PREFIX}.{KIND}", f"{_PREFIX}.{KIND}List"

    def operation(name: str, action: str, schema: str, subject: str) -> Document:
        kind = {"group": GROUP, "version": VERSION, "kind": KIND}
        content: Document = {"description": "OK"}
        if version == 2:
            content["schema"] = {"$ref": base + schema}
        else:
            content["content"] = {"application/json": {"schema": {"$ref": base + schema}}}
        produces = {"produces": ["application/json"]} if version == 2 else {}
        return {
            "get": {
                "description": subject,
                "operationId": name,
                **produces,
                "responses": {"200": content},
                "x-kubernetes-action": action,
                "x-kubernetes-group-version-kind": kind,
            },
            "parameters": [],
        }

    def named(*names: str) -> list[Document]:
        kind = {"type": "string"} if version == 2 else {"schema": {"type": "string"}}
        return [{"name": name, "in": "path", "required": True, **kind} for name in names]

    below = f"{root}/namespaces/{{namespace}}"
    found = {
        f"{root}/{RESOURCE}": operation("listImagePullForAllNamespaces", "list", many, "List all."),
        f"{below}/{RESOURCE}": operation("listNamespacedImagePull", "list", many, "List some."),
        f"{below}/{RESOURCE}/{{name}}": operation("readNamespacedImagePull", "get", one, "Get."),
        f"{below}/pods/{{name}}/{SUBRESOURCE}": operation(
            "readNamespacedPodImagepullprogress", "get", one, "Follow the pulls of a pod."
        ),
    }
    for path, document in found.items():
        document["parameters"] = named(
            *(word for word in ("namespace", "name") if f"{{{word}}}" in path)
        )
    return found


def _info() -> Document:
    return {"title": "pycrictl agent", "version": __version__}


def v3() -> Document:
    """Return the document of the group's version (OpenAPI 3.0)."""
    return {
        "openapi": "3.0.0",
        "info": _info(),
        "paths": _paths(_V3, 3),
        "components": {"schemas": _schemas(_V3)},
    }


def v2() -> Document:
    """Return the document of this API (Swagger 2.0), which the API server merges with others."""
    return {
        "swagger": "2.0",
        "info": _info(),
        "paths": _paths(_V2, 2),
        "definitions": _schemas(_V2),
    }


def index() -> Document:
    """Return where the documents of OpenAPI v3 are; the hash changes when they do."""
    digest = hashlib.sha256(json.dumps(v3()).encode()).hexdigest()[:32].upper()
    url = f"/openapi/v3/apis/{GROUP_VERSION}?hash={digest}"
    return {"paths": {f"apis/{GROUP_VERSION}": {"serverRelativeURL": url}}}
