"""API discovery: the group, its resources, and the schema of ImagePull. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from pycrictl import __version__
from pycrictl.cluster.agent.api.names import (
    COPIES,
    COPY_KIND,
    GROUP,
    GROUP_VERSION,
    KIND,
    NAME,
    RESOURCE,
    SHORT,
    SINGULAR,
    SUBRESOURCE,
    VERSION,
    Document,
)
from pycrictl.pulls.messages import MAX_LAYERS, SUMS

_PREFIX: Final = f"dev.pycrictl.progress.{VERSION}"
_METADATA: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"
MAX_TEXT: Final = 1024
"""The longest error, in characters."""

_BASE: Final = "#/components/schemas/"


def _text(description: str, **more: Any) -> Document:
    return {"type": "string", "description": description, **more}


def _name(description: str) -> Document:
    return _text(description, maxLength=512, pattern=f"^{NAME}$")


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

_CONDITION: Final = {
    "type": "object",
    "description": "A condition, for kubectl wait.",
    "required": ["type", "status"],
    "properties": {
        "type": _text("Pulled: the image is there. Failed: the last attempt failed."),
        "status": _text("Whether it holds.", enum=["True", "False", "Unknown"]),
        "reason": _text("The phase of the pull."),
        "message": _text("Why the pull failed, or why nothing is known of it."),
        "lastTransitionTime": _text("Since when it holds or not.", format="date-time"),
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
                *("Waiting", "Queued", "Pulling", "Extracting", "Succeeded", "Failed", "BackOff")
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
        "startsInSeconds": _number("When it is expected to leave the line; absent if unknown."),
        "layers": {
            "type": "array",
            "items": _LAYER,
            "maxItems": MAX_LAYERS,
            "description": "Its layers, as far as they are known.",
        },
        "sums": {
            "type": "object",
            "description": "All sums of the pull, as its progress stream has them.",
            "properties": {name: {"type": kind} for name, kind in SUMS.items()},
        },
        "startTime": _text("When the pull began.", format="date-time"),
        "stalledSeconds": _number("For how long no byte has come; absent below ten seconds."),
        "conditions": {
            "type": "array",
            "items": _CONDITION,
            "maxItems": 8,
            "description": "Whether the image is there, and whether the pull has failed.",
        },
        "error": _text("Why the pull failed, or why nothing is known of it."),
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

_IDENTITY: Final = {
    "apiVersion": _text("The version of this schema."),
    "kind": _text("What the object is."),
}


_OBJECT_META: Final = {
    "type": "object",
    "description": "What names an object.",
    "properties": {
        "name": _name("Name of the pod, a dot, and its first container of the image."),
        "namespace": _name("The pod's namespace."),
        "uid": _text("The pod's UID and a hash of the image.", maxLength=256),
        "resourceVersion": _text("Where a watch may go on from.", pattern="^[0-9]{1,19}$"),
        "creationTimestamp": _text("Since when the image is waited for.", format="date-time"),
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


_LIST: Final = f"namespaces/{{namespace}}/{RESOURCE}"
_PATHS: Final = (
    (RESOURCE, "list", "listImagePullForAllNamespaces", "List all."),
    (_LIST, "list", "listNamespacedImagePull", "List some."),
    (f"{_LIST}/{{name}}", "get", "readNamespacedImagePull", "Get one."),
    (
        *(f"namespaces/{{namespace}}/pods/{{name}}/{SUBRESOURCE}", "get"),
        *("readNamespacedPodImagepullprogress", "Follow the pulls of a pod."),
    ),
)
"""Each path with its action, the operation's name, and a description."""


def _path(path: str, action: str, name: str, description: str) -> Document:
    schema = {"$ref": f"{_BASE}{_PREFIX}.{KIND}{'List' if action == 'list' else ''}"}
    answer = {"description": "OK", "content": {"application/json": {"schema": schema}}}
    return {
        "get": {
            "description": description,
            "operationId": name,
            "responses": {"200": answer},
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": {"group": GROUP, "version": VERSION, "kind": KIND},
        },
        "parameters": [
            {"name": word, "in": "path", "required": True, "schema": {"type": "string"}}
            for word in ("namespace", "name")
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
    """Return the URL of the document; the hash in it changes when the document does."""
    digest = hashlib.sha256(json.dumps(document()).encode()).hexdigest()[:32].upper()
    url = f"/openapi/v3/apis/{GROUP_VERSION}?hash={digest}"
    return {"paths": {f"apis/{GROUP_VERSION}": {"serverRelativeURL": url}}}


_VERSION: Final = {"groupVersion": GROUP_VERSION, "version": VERSION}
_GROUP: Final = {"name": GROUP, "versions": [_VERSION], "preferredVersion": _VERSION}


def group() -> Document:
    return {"kind": "APIGroup", "apiVersion": "v1", **_GROUP}


def groups() -> Document:
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_GROUP]}


def resources() -> Document:
    listed = {"singularName": SINGULAR, "shortNames": [SHORT]}
    kinds = (
        (RESOURCE, KIND, ["get", "list", "watch"], listed),
        (f"pods/{SUBRESOURCE}", KIND, ["get", "watch"], {"singularName": ""}),
        (f"pods/{COPIES}", COPY_KIND, ["create", "get"], {"singularName": ""}),
    )
    found = [
        {"name": name, "kind": kind, "namespaced": True, "verbs": verbs, **names}
        for name, kind, verbs, names in kinds
    ]
    head = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": GROUP_VERSION}
    return {**head, "resources": found}
