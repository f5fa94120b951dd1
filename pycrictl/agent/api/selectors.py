"""Field and label selectors, as the API server reads them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from pycrictl.agent.api.names import Document
from pycrictl.agent.api.status import Refusal

FIELDS: Final[dict[str, Callable[[Document], str]]] = {
    "metadata.name": lambda one: str(one["metadata"]["name"]),
    "metadata.namespace": lambda one: str(one["metadata"]["namespace"]),
    "spec.nodeName": lambda one: str(one["spec"].get("nodeName", "")),
    "spec.podName": lambda one: str(one["spec"]["podName"]),
    "status.phase": lambda one: str(one["status"]["phase"]),
}
MAX_CHARS: Final = 4096

_NEGATIVE: Final = re.compile(r"\s*(!|\S+\s*!=|\S+\s+notin\b)")


class Requirement(NamedTuple):
    key: str
    is_equal: bool
    value: str


class FieldSelector(NamedTuple):
    requirements: tuple[Requirement, ...] = ()

    def wanted(self, key: str) -> str:
        """Return the one value that a field must have; empty if several would do."""
        return next((one.value for one in self.requirements if one.key == key and one.is_equal), "")

    def fits(self, document: Document) -> bool:
        return all(
            (FIELDS[one.key](document) == one.value) == one.is_equal for one in self.requirements
        )


def parse_fields(text: str) -> FieldSelector:
    """Read a field selector such as ``spec.nodeName=n1,metadata.name!=web.app``."""
    found = []
    for term in filter(None, _checked(text, "field").split(",")):
        match = re.fullmatch(r"([^=!]+)(==|=|!=)(.*)", term.strip(), re.DOTALL)
        if match is None:
            raise Refusal(400, f"invalid field selector: {term[:200]!r}")
        key = match[1].strip()
        if key not in FIELDS:
            raise Refusal(400, f"field label not supported: {key[:200]}")
        found.append(Requirement(key, match[2] != "!=", match[3].strip()))
    return FieldSelector(tuple(found))


def fits_labels(text: str) -> bool:
    """Return whether objects without labels fit a label selector; clients check its form."""
    terms = re.split(r",(?![^()]*\))", _checked(text, "label").strip())
    return all(_NEGATIVE.match(term) for term in terms if term)


def _checked(text: str, kind: str) -> str:
    if len(text) > MAX_CHARS:
        raise Refusal(400, f"the {kind} selector is longer than {MAX_CHARS} characters")
    return text
