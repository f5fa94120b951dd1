"""Parses API requests, and writes responses as documents or as the tables of ``kubectl get``.

Pure but for aiohttp's types.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

from aiohttp import web

from pycrictl.base.units import escape, format_bytes, format_duration, format_part, parse_bool
from pycrictl.cluster.agent.api.names import GROUP_VERSION, KIND, META, Document, Refusal
from pycrictl.pulls.reference import parse

MAX_QUERY_CHARS: Final = 16 * 1024
MAX_PARAMETERS: Final = 50
JSON: Final = "application/json"
FIELDS: Final[dict[str, Callable[[Document], str]]] = {
    "metadata.name": lambda document: str(document["metadata"]["name"]),
    "metadata.namespace": lambda document: str(document["metadata"]["namespace"]),
    "spec.nodeName": lambda document: str(document["spec"].get("nodeName", "")),
    "spec.podName": lambda document: str(document["spec"]["podName"]),
    "status.phase": lambda document: str(document["status"]["phase"]),
}

_ALWAYS: Final = 0
_WIDE: Final = 1

_COLUMNS: Final = (
    ("Name", _ALWAYS, "The pod, and its first container that uses the image."),
    ("Image", _ALWAYS, "The image, without its registry."),
    ("Phase", _ALWAYS, "Where the pull stands."),
    ("Percent", _ALWAYS, "How much of the work is done."),
    ("Progress", _ALWAYS, "Bytes that have arrived."),
    ("ETA", _ALWAYS, "The time left."),
    ("Age", _ALWAYS, "How long the pull has been running or awaited."),
    ("Node", _WIDE, "The node that pulls."),
    ("Rate", _WIDE, "Bytes per second."),
    ("Queue", _WIDE, "The place in the line for a slot."),
    ("Reason", _WIDE, "The kubelet's reason why the container waits."),
    ("Error", _WIDE, "Why the pull failed, or why its state is unknown."),
)

_NONE: Final = "<none>"
_UNKNOWN: Final = "<unknown>"


class Requirement(NamedTuple):
    key: str
    is_equal: bool
    value: str


class FieldSelector(NamedTuple):
    requirements: tuple[Requirement, ...] = ()

    def wanted(self, key: str) -> str:
        """Return the only value that a field may have; empty if several are allowed."""
        terms = self.requirements
        return next((term.value for term in terms if term.key == key and term.is_equal), "")

    def fits(self, document: Document) -> bool:
        return all(
            (FIELDS[term.key](document) == term.value) == term.is_equal
            for term in self.requirements
        )


def parse_fields(text: str) -> FieldSelector:
    """Read a field selector such as ``spec.nodeName=n1,metadata.name!=web.app``."""
    requirements = []
    for term in filter(None, text.split(",")):
        match = re.fullmatch(r"([^=!]+)(==|=|!=)(.*)", term.strip(), re.DOTALL)
        if match is None:
            raise Refusal(400, f"invalid field selector: {term[:200]!r}")
        key = match[1].strip()
        if key not in FIELDS:
            raise Refusal(400, f"field label not supported: {key[:200]}")
        requirements.append(Requirement(key, match[2] != "!=", match[3].strip()))
    return FieldSelector(tuple(requirements))


class ListQuery(NamedTuple):
    """The parameters of a list or watch (``metav1.ListOptions``).

    ``selects_labels``: there is a label selector; no object fits it, as none has labels.
    """

    fields: FieldSelector = FieldSelector()
    selects_labels: bool = False
    version: str = ""
    match: str = ""
    is_watch: bool = False
    wants_bookmarks: bool = False
    timeout_s: int = 0
    include: str = "Metadata"

    def fits(self, document: Document) -> bool:
        return not self.selects_labels and self.fields.fits(document)


def parameters(text: str) -> dict[str, str]:
    """Return the query parameters of a request; the first value of each counts."""
    if len(text) > MAX_QUERY_CHARS:
        raise Refusal(400, "the query is too long")
    try:
        pairs = parse_qsl(
            text, keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS
        )
    except ValueError:
        raise Refusal(400, "the query cannot be read") from None
    return dict(reversed(pairs))


def parse_query(given: dict[str, str]) -> ListQuery:
    version = given.get("resourceVersion", "")
    if version and not (version.isascii() and version.isdigit() and len(version) <= 19):
        raise Refusal(400, "invalid resource version")
    match = given.get("resourceVersionMatch", "")
    is_watch = _boolean(given, "watch")
    if match not in ("", "Exact", "NotOlderThan"):
        raise Refusal(422, f"resourceVersionMatch: {match[:50]!r} is not supported")
    if is_watch and (match or "sendInitialEvents" in given):  # clients then list and watch
        raise Refusal(422, "a watch cannot have sendInitialEvents or resourceVersionMatch here")
    include = given.get("includeObject", "") or "Metadata"
    if include not in ("None", "Metadata", "Object"):
        raise Refusal(400, f"unrecognized includeObject value: {include[:50]!r}")
    return ListQuery(
        parse_fields(given.get("fieldSelector", "")),
        bool(given.get("labelSelector")),
        version,
        match,
        is_watch,
        _boolean(given, "allowWatchBookmarks"),
        _seconds(given),
        include,
    )


class Form(NamedTuple):
    """How objects are written; ``include`` is what a table's row has beside its cells."""

    is_table: bool = False
    include: str = "Metadata"

    def single(self, document: Document, *, has_header: bool = True) -> Document:
        if not self.is_table:
            return document
        metadata = {"resourceVersion": document["metadata"].get("resourceVersion", "")}
        return table([document], metadata, include=self.include, has_header=has_header)

    def many(self, documents: list[Document], version: int) -> Document:
        metadata = {"resourceVersion": str(version)}
        if self.is_table:
            return table(documents, metadata, include=self.include)
        return {
            "kind": f"{KIND}List",
            "apiVersion": GROUP_VERSION,
            "metadata": metadata,
            "items": documents,
        }


def form_of(accept: str, include: str = "Metadata") -> Form:
    choices = accept or JSON
    for choice in choices.split(","):
        kind, *rest = (word.strip() for word in choice.split(";"))
        options = dict(word.partition("=")[::2] for word in rest)
        if kind not in (JSON, "application/*", "*/*"):
            continue
        if not (wanted := options.get("as", "")):
            return Form(include=include)
        if (wanted, options.get("g"), options.get("v")) == ("Table", META, "v1"):
            return Form(is_table=True, include=include)
    raise Refusal(406, f"only {JSON} is served here")


def respond(
    document: Document, *, status: int = 200, warnings: Iterable[str] = (), retry_after_s: int = 0
) -> web.Response:
    response = web.Response(
        body=json.dumps(document, separators=(",", ":")).encode(),
        status=status,
        headers={"Content-Type": JSON, "Cache-Control": "no-cache, private"},
    )
    if retry_after_s:
        response.headers["Retry-After"] = str(retry_after_s)
    add_warnings(response, warnings)
    return response


def refuse(refusal: Refusal) -> web.Response:
    return respond(refusal.document, status=refusal.code, retry_after_s=refusal.retry_after_s)


def add_warnings(response: web.StreamResponse, warnings: Iterable[str]) -> None:
    """Add warnings, which clients show to the user (RFC 7234, 5.5, as in the API server)."""
    for text in warnings:
        plain = escape(text).encode("ascii", "backslashreplace").decode()
        quoted = plain.replace("\\", "\\\\").replace('"', '\\"')[:1000]
        response.headers.add("Warning", f'299 - "{quoted}"')


def _boolean(given: dict[str, str], key: str) -> bool:
    """Read a boolean as the API server does: a parameter without a value is true."""
    text = given.get(key)
    if text is None:
        return False
    try:
        return text == "" or parse_bool(text)
    except ValueError:
        raise Refusal(400, f"{key} is not a boolean") from None


def _seconds(given: dict[str, str]) -> int:
    text = given.get("timeoutSeconds", "")
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise Refusal(400, "timeoutSeconds is not a number of seconds")
    return int(text)


def columns(*, with_queue: bool = False) -> list[Document]:
    """Return the definitions of the columns; ``with_queue``: Queue even without ``-o wide``."""
    return [
        {
            "name": name,
            "type": "string",
            "format": "name" if name == "Name" else "",
            "description": text,
            "priority": _ALWAYS if with_queue and name == "Queue" else priority,
        }
        for name, priority, text in _COLUMNS
    ]


def table(
    objects: Sequence[Document],
    metadata: Document,
    *,
    include: str = "Metadata",
    has_header: bool = True,
    now: datetime | None = None,
) -> Document:
    """Return a Table.

    Args:
        include: what each row has besides its cells: ``None``, ``Metadata`` or ``Object``.
        has_header: whether to define the columns, which a watch does once.
    """
    when = now or datetime.now(UTC)
    is_queued = any(document.get("status", {}).get("queuePosition") for document in objects)
    return {
        "kind": "Table",
        "apiVersion": f"{META}/v1",
        "metadata": metadata,
        "columnDefinitions": columns(with_queue=is_queued) if has_header else [],
        "rows": [
            {"cells": cells(document, when), **_included(document, include)} for document in objects
        ],
    }


def cells(document: Document, now: datetime) -> list[str]:
    spec, status = document.get("spec", {}), document.get("status", {})
    percent, eta, rate = (status.get(key) for key in ("percent", "etaSeconds", "bytesPerSecond"))
    phase = status.get("phase", "")
    texts = [
        document["metadata"]["name"],
        short_image(spec.get("image", "")),
        _UNKNOWN if status.get("unknown") else phase,
        "" if percent is None else f"{percent}%",
        progress(status),
        "" if eta is None else format_duration(eta),
        age(document["metadata"].get("creationTimestamp"), now),
        spec.get("nodeName") or _NONE,
        "" if rate is None else f"{format_bytes(rate)}/s",
        str(status.get("queuePosition", "")),
        status.get("kubeletReason", ""),
        status.get("error", ""),
    ]
    return [escape(text) for text in texts]


def short_image(reference: str) -> str:
    _, path, tag, digest = parse(reference)
    path = path.removeprefix("library/")
    return f"{path}:{tag}" if tag else f"{path}@{digest[:19]}" if digest else path


def progress(status: Document) -> str:
    """Return how many bytes have arrived, such as ``22.9 of 27.1 MiB``."""
    if not (total := status.get("totalBytes")):
        return ""
    return format_part(status.get("progressBytes", 0), total, of=" of ")


def age(created: Any, now: datetime) -> str:
    """Return an age as kubectl writes it, in its largest unit: ``42s``, ``5m``, ``3h``, ``2d``."""
    try:
        then = datetime.fromisoformat(created)
        seconds = max(int((now - then).total_seconds()), 0)
    except (TypeError, ValueError):
        return _UNKNOWN
    for size, unit, from_s in ((86400, "d", 48 * 3600), (3600, "h", 3 * 3600), (60, "m", 120)):
        if seconds >= from_s:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _included(document: Document, include: str) -> Document:
    if include == "None":
        return {}
    kind = {"kind": "PartialObjectMetadata", "apiVersion": f"{META}/v1"}
    is_whole = include == "Object"
    return {"object": document if is_whole else {**kind, "metadata": document["metadata"]}}
