"""Discovery documents of the aggregated API: groups, resources. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from pycrictl.agent.api.names import (
    COPIES,
    COPY_KIND,
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


class _Resource(NamedTuple):
    name: str
    singular: str
    kind: str
    verbs: list[str]
    short_names: list[str]


_RESOURCES: Final = (
    _Resource(RESOURCE, SINGULAR, KIND, ["get", "list", "watch"], [SHORT]),
    _Resource(f"pods/{SUBRESOURCE}", "", KIND, ["get", "watch"], []),
    _Resource(f"pods/{COPIES}", "", COPY_KIND, ["create", "get"], []),
)


def group() -> Document:
    version = {"groupVersion": GROUP_VERSION, "version": VERSION}
    return {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": GROUP,
        "versions": [version],
        "preferredVersion": version,
    }


def groups() -> Document:
    only = {key: value for key, value in group().items() if key not in ("kind", "apiVersion")}
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [only]}


def resources() -> Document:
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
                **({"shortNames": one.short_names} if one.short_names else {}),
            }
            for one in _RESOURCES
        ],
    }
