"""What the API server asks an aggregated API about itself: groups, resources. Pure."""

from __future__ import annotations

from typing import Final

from pycrictl.agent.api.names import (
    COPIES,
    COPY_KIND,
    COPY_SINGULAR,
    GROUP,
    GROUP_VERSION,
    KIND,
    RESOURCE,
    SHORT,
    SINGULAR,
    SUBRESOURCE,
    VERSION,
    Document,
)

AGGREGATED: Final = "application/json;g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList"
"""The type of an aggregated discovery document (KEP-3352) of some version."""

_VERSIONS: Final = ("v2", "v2beta1")
_RESPONSE_KIND: Final = {"group": GROUP, "version": VERSION, "kind": KIND}
_VERBS: Final = ["get", "list", "watch"]
_COPY_KIND: Final = {**_RESPONSE_KIND, "kind": COPY_KIND}


def group() -> Document:
    """Return the ``APIGroup``."""
    version = {"groupVersion": GROUP_VERSION, "version": VERSION}
    return {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": GROUP,
        "versions": [version],
        "preferredVersion": version,
    }


def groups() -> Document:
    """Return the ``APIGroupList``."""
    only = {key: value for key, value in group().items() if key not in ("kind", "apiVersion")}
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [only]}


def resources() -> Document:
    """Return the ``APIResourceList``."""
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": GROUP_VERSION,
        "resources": [
            {
                "name": RESOURCE,
                "singularName": SINGULAR,
                "namespaced": True,
                "kind": KIND,
                "verbs": _VERBS,
                "shortNames": [SHORT],
            },
            {  # without verbs: only there for "kubectl explain", which knows no subresources
                "name": COPIES,
                "singularName": COPY_SINGULAR,
                "namespaced": True,
                "kind": COPY_KIND,
                "verbs": [],
            },
            {
                "name": f"pods/{SUBRESOURCE}",
                "singularName": "",
                "namespaced": True,
                "kind": KIND,
                "verbs": ["get", "watch"],
            },
            {
                "name": f"pods/{COPIES}",
                "singularName": "",
                "namespaced": True,
                "kind": COPY_KIND,
                "verbs": ["create", "get"],
            },
        ],
    }


def aggregated(accept: str) -> tuple[Document, str] | None:
    """Return the ``APIGroupDiscoveryList`` and its type; None if it is not asked for."""
    words = accept.replace(" ", "")
    for version in _VERSIONS:
        if (kind := AGGREGATED.format(version)) in words:
            break
    else:
        return None
    scope = {"scope": "Namespaced"}
    document = {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version}",
        "metadata": {},
        "items": [
            {
                "metadata": {"name": GROUP, "creationTimestamp": None},
                "versions": [
                    {
                        "version": VERSION,
                        "freshness": "Current",
                        "resources": [
                            {
                                "resource": RESOURCE,
                                "responseKind": _RESPONSE_KIND,
                                **scope,
                                "singularResource": SINGULAR,
                                "verbs": _VERBS,
                                "shortNames": [SHORT],
                            },
                            {
                                "resource": COPIES,
                                "responseKind": _COPY_KIND,
                                **scope,
                                "singularResource": COPY_SINGULAR,
                                "verbs": [],
                            },
                            {  # without a kind of its own, as the API server has such parents
                                "resource": "pods",
                                "responseKind": {"group": "", "version": "", "kind": ""},
                                **scope,
                                "singularResource": "",
                                "verbs": [],
                                "subresources": [
                                    {
                                        "subresource": SUBRESOURCE,
                                        "responseKind": _RESPONSE_KIND,
                                        "verbs": ["get", "watch"],
                                    },
                                    {
                                        "subresource": COPIES,
                                        "responseKind": _COPY_KIND,
                                        "verbs": ["create", "get"],
                                    },
                                ],
                            },
                        ],
                    }
                ],
            }
        ],
    }
    return document, kind
