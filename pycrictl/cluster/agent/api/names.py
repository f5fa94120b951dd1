"""The names of the API, and its error responses (``metav1.Status``). Pure."""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

from pycrictl.base.units import escape

Document: TypeAlias = dict[str, Any]
GROUP: Final = "progress.pycrictl.dev"
VERSION: Final = "v1alpha1"
GROUP_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "ImagePull"
RESOURCE: Final = "imagepulls"
COPY_KIND: Final = "ContainerCopy"
COPIES: Final = "containercopies"
META: Final = "meta.k8s.io"

AUDIENCE: Final = GROUP
"""The audience of the tokens that agents use to authenticate to each other."""

SERVICE: Final = "pycrictl-agent"
"""The Service whose endpoints are the agents."""

PORT: Final = 10281

_LABEL: Final = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
NAME: Final = rf"{_LABEL}(?:\.{_LABEL})*"
"""A regular expression of an RFC 1123 subdomain."""

_NAME: Final = re.compile(NAME)
_MAX_NAME_CHARS: Final = 253

_REASONS: Final = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    410: "Expired",
    413: "RequestEntityTooLarge",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}

DEBUGGING_OFF: Final = "Debug endpoints are disabled."
"""The response of a kubelet with ``enableDebuggingHandlers: false``, with status 405."""


def is_name(text: str) -> bool:
    return len(text) <= _MAX_NAME_CHARS and _NAME.fullmatch(text) is not None


class Refusal(Exception):
    """An error response; ``kind`` is the resource of the object ``name``."""

    def __init__(
        self,
        code: int,
        message: str,
        *,
        name: str = "",
        kind: str = RESOURCE,
        retry_after_s: int = 0,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = escape(message)
        self.retry_after_s = retry_after_s
        self.name = name
        self._kind = kind

    @property
    def document(self) -> Document:
        """The ``Status`` (apimachinery's ``metav1``)."""
        details: Document = {}
        if self.name or self._kind != RESOURCE:
            group = {"group": GROUP} if self._kind == RESOURCE else {}
            details = {"name": self.name, **group, "kind": self._kind}
        if self.retry_after_s:
            details["retryAfterSeconds"] = self.retry_after_s
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": _REASONS.get(self.code, "InternalError"),
            **({"details": details} if details else {}),
            "code": self.code,
        }


def not_found(name: str) -> Refusal:
    return Refusal(404, f'{RESOURCE}.{GROUP} "{name}" not found', name=name)


def pod_not_found(name: str) -> Refusal:
    return Refusal(404, f'pods "{name}" not found', name=name, kind="pods")


def expired(text: str) -> Refusal:
    return Refusal(410, f"the resource version {text} is too old or from another agent: list again")
