"""What the API server asks an aggregated API about itself: groups, resources. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

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


class _Resource(NamedTuple):
    name: str
    singular: str
    kind: str
    verbs: list[str]
    short_names: list[str]

    @property
    def shorts(self) -> Document:
        return {"shortNames": self.short_names} if self.short_names else {}

    @property
    def response_kind(self) -> Document:
        return {"group": GROUP, "version": VERSION, "kind": self.kind}


_RESOURCES: Final = (
    _Resource(RESOURCE, SINGULAR, KIND, ["get", "list", "watch"], [SHORT]),
    # Without verbs: only there for "kubectl explain", which knows no subresources.
    _Resource(COPIES, COPY_SINGULAR, COPY_KIND, [], []),
)
_OF_PODS: Final = (
    _Resource(SUBRESOURCE, "", KIND, ["get", "watch"], []),
    _Resource(COPIES, "", COPY_KIND, ["create", "get"], []),
)


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
    of_pods = (one._replace(name=f"pods/{one.name}") for one in _OF_PODS)
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": GROUP_VERSION,
        "resources": [
            {
                "name": one.name,
                "singularName": one.singular,
                "namespaced": True,
                "kind": one.kind,
                "verbs": one.verbs,
                **one.shorts,
            }
            for one in (*_RESOURCES, *of_pods)
        ],
    }


def aggregated(accept: str) -> tuple[Document, str] | None:
    """Return the ``APIGroupDiscoveryList`` and its type; None if it is not asked for."""
    words = accept.replace(" ", "")
    version = next((one for one in _VERSIONS if AGGREGATED.format(one) in words), None)
    if version is None:
        return None
    found: list[Document] = [
        {
            "resource": one.name,
            "responseKind": one.response_kind,
            "scope": "Namespaced",
            "singularResource": one.singular,
            "verbs": one.verbs,
            **one.shorts,
        }
        for one in _RESOURCES
    ]
    pods = {  # without a kind of its own, as the API server has such parents
        "resource": "pods",
        "responseKind": {"group": "", "version": "", "kind": ""},
        "scope": "Namespaced",
        "singularResource": "",
        "verbs": [],
        "subresources": [
            {"subresource": one.name, "responseKind": one.response_kind, "verbs": one.verbs}
            for one in _OF_PODS
        ],
    }
    served = {"version": VERSION, "freshness": "Current", "resources": [*found, pods]}
    document = {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version}",
        "metadata": {},
        "items": [{"metadata": {"name": GROUP, "creationTimestamp": None}, "versions": [served]}],
    }
    return document, AGGREGATED.format(version)
