"""Parsing and authorization of API requests: RequestInfo and RBAC, as far as needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

MASTERS = "system:masters"
AUTHENTICATED = "system:authenticated"

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_FALSE = ("false", "0")  # any other value is true, even an empty one

DISCOVERY = {
    "nonResourceURLs": [
        "/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*", "/version",
        "/healthz", "/livez", "/readyz",
    ],
    "verbs": ["get"],
}  # fmt: skip
"""The rights of every authenticated user (ClusterRole system:discovery)."""


@dataclass(frozen=True)
class User:
    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def is_master(self) -> bool:
        return MASTERS in self.groups

    @property
    def all_groups(self) -> tuple[str, ...]:
        return (*self.groups, *([] if AUTHENTICATED in self.groups else [AUTHENTICATED]))


@dataclass(frozen=True)
class Request:
    """A request as an authorizer sees it; ``resource`` is empty for non-resource URLs."""

    verb: str
    path: str = ""
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    field_selector: str = ""

    @property
    def kind(self) -> str:
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


def parse(method: str, target: str) -> Request:
    """Parse a request's target as RequestInfoFactory does: decode the path, but never clean it."""
    url = urlsplit(target)
    path = unquote(url.path)
    parts = path.strip("/").split("/")
    plain = Request(method.lower(), path)
    if len(parts) < 3 or parts[0] not in ("api", "apis"):
        return plain
    group = ""
    if parts[0] == "apis":
        if len(parts) < 4:
            return plain
        group = parts.pop(1)
    parts = parts[2:]
    is_watch = parts[0] == "watch" and len(parts) > 1  # the deprecated form, also valid with a name
    parts = parts[is_watch:]
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 1:
        namespace = parts[1]
        if len(parts) > 2 and parts[2] not in ("status", "finalize"):
            parts = parts[2:]
    resource, name, subresource = (*parts, "", "")[:3]
    verb = "watch" if is_watch else _VERBS.get(method, "get")
    query = parse_qs(url.query, keep_blank_values=True)
    selector = query.get("fieldSelector", [""])[0]
    if verb == "get" and not name:
        watch = query.get("watch", ["0"])[0].lower()
        verb = "list" if watch in _FALSE else "watch"
        exact = [word.partition("=") for word in selector.split(",")]
        name = next((value.lstrip("=") for key, _, value in exact if key == "metadata.name"), "")
    return Request(verb, path, group, resource, subresource, namespace, name, selector)


def forbidden_message(user: User, request: Request) -> str:
    if not request.resource:
        return f'forbidden: User "{user.name}" cannot {request.verb} path "{request.path}"'
    target = f"{request.resource}.{request.group}" if request.group else request.resource
    if request.name:
        target += f' "{request.name}"'
    where = (
        f'in the namespace "{request.namespace}"' if request.namespace else "at the cluster scope"
    )
    return (
        f'{target} is forbidden: User "{user.name}" cannot {request.verb} resource "{request.kind}"'
        f' in API group "{request.group}" {where}'
    )


@dataclass(frozen=True)
class Grant:
    """Rules of a Role or ClusterRole, for a user or a group.

    Attributes:
        subject: a user's name or ``group:NAME``.
        rules: in RBAC's form: apiGroups, resources, verbs, resourceNames, nonResourceURLs.
        namespace: where the rules apply; everywhere if empty.
    """

    subject: str
    rules: Sequence[Mapping[str, Any]]
    namespace: str = ""

    def covers(self, user: User, request: Request) -> bool:
        subjects = {user.name, *(f"group:{group}" for group in user.all_groups)}
        if self.subject not in subjects or self.namespace not in ("", request.namespace):
            return False
        return any(_permits(rule, request) for rule in self.rules)


def _permits(rule: Mapping[str, Any], request: Request) -> bool:
    if not _has(rule, "verbs", request.verb):
        return False
    if not request.resource:
        urls = rule.get("nonResourceURLs", ())
        return any(
            request.path.startswith(url[:-1]) if url.endswith("*") else request.path == url
            for url in urls
        )
    names = rule.get("resourceNames", ())
    return (
        _has(rule, "apiGroups", request.group)
        and (
            _has(rule, "resources", request.kind) or f"*/{request.subresource}" in rule["resources"]
        )
        and (not names or request.name in names)
    )


def _has(rule: Mapping[str, Any], key: str, value: str) -> bool:
    allowed = rule.get(key, ())
    return "*" in allowed or value in allowed


def node_refusal(user: User, request: Request) -> str | None:
    """Return why the Node authorizer refuses a kubelet's request; ``None`` if it does not."""
    node = user.name.removeprefix("system:node:")
    asked = request.group, request.kind, request.verb
    if request.kind == "pods" and request.verb in ("list", "watch"):
        if request.field_selector == f"spec.nodeName={node}":
            return None
        return "can only list/watch pods with spec.nodeName field selector"
    allowed = {
        ("authentication.k8s.io", "tokenreviews", "create"),
        ("authorization.k8s.io", "subjectaccessreviews", "create"),
        *(("", "events", verb) for verb in ("create", "patch", "update")),
    }
    own = asked == ("", "nodes", "get") and request.name == node
    return None if asked in allowed or own else ""
