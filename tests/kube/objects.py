"""The objects that a stand-in for an API server stores, and its discovery."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.kube.access import Request

Document = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    group: str
    version: str
    resource: str
    kind: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ("create", "delete", "get", "list", "patch", "update", "watch")

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def singular(self) -> str:
        return self.kind.lower()


_ASKED = ("create",)
KINDS = (
    Kind("", "v1", "pods", "Pod", short=("po",)),
    Kind("", "v1", "nodes", "Node", namespaced=False, short=("no",)),
    Kind("", "v1", "namespaces", "Namespace", namespaced=False, short=("ns",)),
    Kind("", "v1", "configmaps", "ConfigMap", short=("cm",)),
    Kind("", "v1", "events", "Event", short=("ev",)),
    Kind("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"),
    Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", short=("pvc",)),
    Kind("apps", "v1", "deployments", "Deployment", short=("deploy",)),
    Kind("apps", "v1", "replicasets", "ReplicaSet", short=("rs",)),
    Kind("apps", "v1", "statefulsets", "StatefulSet", short=("sts",)),
    Kind("apps", "v1", "daemonsets", "DaemonSet", short=("ds",)),
    Kind("batch", "v1", "jobs", "Job"),
    Kind("batch", "v1", "cronjobs", "CronJob", short=("cj",)),
    Kind("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", False, verbs=_ASKED),
    Kind(
        "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview",
        namespaced=False,
        verbs=_ASKED,
    ),
)  # fmt: skip


def kind_of(request: Request) -> Kind | None:
    wanted = request.group, request.resource
    return next((kind for kind in KINDS if (kind.group, kind.resource) == wanted), None)


def status(code: int, message: str, reason: str = "", **details: Any) -> Document:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        **({"reason": reason} if reason else {}),
        **({"details": details} if details else {}),
        "code": code,
    }


class Objects:
    def __init__(self) -> None:
        self._lists: dict[tuple[str, str], Document] = {}
        self._changes: list[tuple[int, tuple[str, str], Document, Document]] = []
        self._news = threading.Condition()
        self.version = 4711

    def add(self, group: str, resource: str, *documents: Document) -> None:
        items = self.documents(group, resource)
        for document in documents:
            self.version += 1
            metadata = document.setdefault("metadata", {})
            metadata["resourceVersion"] = str(self.version)
            same = [item for item in items if _identity(item) == _identity(document)]
            for item in same:
                items.remove(item)
            items.append(document)
            self._note(group, resource, same[0] if same else {}, document)

    def remove(self, group: str, resource: str, namespace: str, name: str) -> None:
        items = self.documents(group, resource)
        for item in [item for item in items if _identity(item) == (namespace, name)]:
            items.remove(item)
            self.version += 1
            self._note(group, resource, item, {})

    def watch(self, kind: Kind, request: Request, query: Mapping[str, str]) -> Iterator[Document]:
        """Iterate over the events of a watch since ``resourceVersion``.

        An object that starts or stops matching the selectors is added or deleted, as in a real one.
        """
        version = int(query.get("resourceVersion") or self.version)
        ends_at = time.monotonic() + float(query.get("timeoutSeconds", 60))
        while (left_s := ends_at - time.monotonic()) > 0:
            with self._news:
                news = [change for change in self._changes if change[0] > version]
                if not news:
                    self._news.wait(min(left_s, 0.2))
            for at, key, before, after in news:
                version = at
                if key != (kind.group, kind.resource):
                    continue
                was, fits = (bool(item) and _fits(item, request, query) for item in (before, after))
                if was or fits:
                    change = "DELETED" if not fits else "MODIFIED" if was else "ADDED"
                    document = {**(after or before)}
                    document["metadata"] = {**document["metadata"], "resourceVersion": str(at)}
                    identity = {"kind": kind.kind, "apiVersion": kind.group_version}
                    yield {"type": change, "object": {**identity, **document}}

    def _note(self, group: str, resource: str, before: Document, after: Document) -> None:
        with self._news:
            self._changes.append((self.version, (group, resource), before, after))
            self._news.notify_all()

    def documents(self, group: str, resource: str) -> list[Document]:
        """Return the list itself, not a copy."""
        stored = self._lists.setdefault((group, resource), {"items": []})
        items: list[Document] = stored["items"]
        return items

    def replace(self, group: str, resource: str, document: Document) -> None:
        self._lists[group, resource] = document

    def whole(self, group: str, resource: str) -> Document:
        self.documents(group, resource)
        return self._lists[group, resource]

    def select(self, kind: Kind, request: Request, query: Mapping[str, str]) -> Document:
        """Return a list, or with ``limit`` a page of it; ``continue`` is where the next begins."""
        whole = self.whole(kind.group, kind.resource)
        items = [item for item in whole["items"] if _fits(item, request, query)]
        begin, limit = int(query.get("continue") or 0), int(query.get("limit") or len(items))
        end = begin + limit
        rest = {"continue": str(end)} if end < len(items) else {}
        items = items[begin:end]
        return {
            "kind": f"{kind.kind}List",
            "apiVersion": kind.group_version,
            "metadata": {"resourceVersion": str(self.version), **rest},
            **{key: value for key, value in whole.items() if key != "items"},
            "items": items,
        }

    def find(self, kind: Kind, request: Request) -> Document | None:
        for document in self.documents(kind.group, kind.resource):
            if _identity(document) == (request.namespace if kind.namespaced else "", request.name):
                return {"kind": kind.kind, "apiVersion": kind.group_version, **document}
        return None


def _identity(document: Document) -> tuple[str, str]:
    metadata = document["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _fits(document: Document, request: Request, query: Mapping[str, str]) -> bool:
    return (
        request.namespace in ("", document["metadata"].get("namespace", ""))
        and _fits_fields(document, query.get("fieldSelector", ""))
        and _fits_labels(document, query.get("labelSelector", ""))
    )


def _fits_fields(document: Document, selector: str) -> bool:
    for wanted in filter(None, selector.split(",")):
        path, is_other, value = _split(wanted)
        inner: Any = document
        for key in path.split("."):
            inner = inner.get(key, "") if isinstance(inner, dict) else ""
        if (inner == value) == is_other:
            return False
    return True


def _fits_labels(document: Document, selector: str) -> bool:
    labels = document["metadata"].get("labels", {})
    for wanted in filter(None, selector.split(",")):
        key, is_other, value = _split(wanted)
        if (labels.get(key) == value) == is_other:
            return False
    return True


def _split(wanted: str) -> tuple[str, bool, str]:
    key, _, value = wanted.partition("=")
    return key.rstrip("!"), key.endswith("!"), value.lstrip("=")


def merged(old: Document, patch: Mapping[str, Any]) -> Document:
    """Apply a JSON merge patch (RFC 7396)."""
    new = copy.deepcopy(old)
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        elif isinstance(value, dict) and isinstance(new.get(key), dict):
            new[key] = merged(new[key], value)
        else:
            new[key] = value
    return new


# Discovery


def _group_versions() -> Iterator[tuple[str, str]]:
    yield from dict.fromkeys((kind.group, kind.version) for kind in KINDS)


def group_document(name: str, *versions: str) -> Document:
    entries = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": entries, "preferredVersion": entries[0]}


def own_groups() -> list[Document]:
    """Return the server's own groups, except the core group, which has no name."""
    return [group_document(group, version) for group, version in _group_versions() if group]


def resource_list(group: str, version: str) -> Document | None:
    kinds = [kind for kind in KINDS if (kind.group, kind.version) == (group, version)]
    resources = [
        {
            "name": kind.resource,
            "singularName": kind.singular,
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": list(kind.verbs),
            **({"shortNames": list(kind.short)} if kind.short else {}),
        }
        for kind in kinds
    ]
    if not kinds:
        return None
    return {
        "kind": "APIResourceList",
        **({"apiVersion": "v1"} if group else {}),
        "groupVersion": kinds[0].group_version,
        "resources": resources,
    }
