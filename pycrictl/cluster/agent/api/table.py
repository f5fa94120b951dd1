"""ImagePull objects as the rows that ``kubectl get`` prints (``meta.k8s.io/v1 Table``). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from pycrictl.base.units import escape, format_bytes, format_duration, format_part
from pycrictl.cluster.agent.api.names import META, Document
from pycrictl.pulls.reference import parse

_ALWAYS: Final = 0
_WIDE: Final = 1

_COLUMNS: Final = (
    ("Name", "string", "name", _ALWAYS, "Name of the pod and of its first container of the image."),
    ("Image", "string", "", _ALWAYS, "The image, without its registry."),
    ("Phase", "string", "", _ALWAYS, "Where the pull stands."),
    ("Percent", "string", "", _ALWAYS, "How much of the work is done."),
    ("Progress", "string", "", _ALWAYS, "Bytes that have arrived."),
    ("ETA", "string", "", _ALWAYS, "How long it still takes."),
    ("Age", "string", "", _ALWAYS, "Since when it runs, or is waited for."),
    ("Node", "string", "", _WIDE, "The node that pulls."),
    ("Rate", "string", "", _WIDE, "Bytes a second."),
    ("Queue", "string", "", _WIDE, "The place in the line of those that wait for a slot."),
    ("Reason", "string", "", _WIDE, "What the kubelet says of the container."),
    ("Error", "string", "", _WIDE, "Why the pull failed, or why nothing is known of it."),
)


def columns(*, with_queue: bool = False) -> list[Document]:
    """Return the definitions of the columns; ``with_queue``: a pull is in the line."""
    return [
        {
            "name": name,
            "type": kind,
            "format": form,
            "description": text,
            "priority": _ALWAYS if with_queue and name == "Queue" else priority,
        }
        for name, kind, form, priority, text in _COLUMNS
    ]


_NONE: Final = "<none>"
_UNKNOWN: Final = "<unknown>"


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
        include: what each row has beside its cells: ``None``, ``Metadata`` or ``Object``.
        has_header: whether to define the columns, which a watch does once.
    """
    when = now or datetime.now(UTC)
    is_queued = any(one.get("status", {}).get("queuePosition") for one in objects)
    return {
        "kind": "Table",
        "apiVersion": f"{META}/v1",
        "metadata": metadata,
        "columnDefinitions": columns(with_queue=is_queued) if has_header else [],
        "rows": [{"cells": cells(one, when), **_included(one, include)} for one in objects],
    }


def cells(document: Document, now: datetime) -> list[str]:
    spec, status = document.get("spec", {}), document.get("status", {})
    percent, eta, rate = (status.get(key) for key in ("percent", "etaSeconds", "bytesPerSecond"))
    phase = status.get("phase", "")
    found = [
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
    return [escape(cell) for cell in found]


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
    """Return an age as kubectl writes it: ``42s``, ``5m10s``, ``3h``, ``2d``."""
    try:
        then = datetime.fromisoformat(created)
        seconds = max(int((now - then).total_seconds()), 0)
    except (TypeError, ValueError):
        return _UNKNOWN
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        rest = seconds % 60
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        rest = minutes % 60
        return f"{hours}h{rest}m" if rest else f"{hours}h"
    return f"{hours}h" if hours < 48 else f"{days}d"


def _included(document: Document, include: str) -> Document:
    if include == "None":
        return {}
    kind = {"kind": "PartialObjectMetadata", "apiVersion": f"{META}/v1"}
    is_whole = include == "Object"
    return {"object": document if is_whole else {**kind, "metadata": document["metadata"]}}
