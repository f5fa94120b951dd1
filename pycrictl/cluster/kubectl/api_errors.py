"""Refusals by kubectl, the API server and the agent, as errors with hints. Pure."""

from __future__ import annotations

import re
from typing import Any, Final

from pycrictl import __version__
from pycrictl.base.errors import (
    ConnectError,
    Denied,
    NotFound,
    PycrictlError,
    RuntimeFault,
    Unavailable,
    Unimplemented,
    UpgradeRefused,
    UsageError,
)
from pycrictl.base.foreign import mapping, parsed
from pycrictl.cluster.agent.api.names import COPIES, GROUP, VERSION

AGENT_NAMESPACE: Final = "pycrictl"
_AGENTS: Final = f"kubectl -n {AGENT_NAMESPACE} get pods -o wide"
_WHICH_SERVER: Final = "'kubectl config view --minify' shows which server is used"
VIEW_ROLE: Final = "pycrictl-imagepulls-view"
"""The manifests' ClusterRole for viewing pulls; it is aggregated to ``view``."""

COPY_ROLE: Final = "pycrictl-containercopies"
"""The ClusterRole for copies, which also require ``pods/exec``; it is aggregated to ``edit``."""

OFFERED_AT: Final = f"/apis/{GROUP}"
REPOSITORY: Final = "https://github.com/pycrictl/pycrictl"
_RELEASE: Final = __version__.partition(".dev")[0]
INSTALL: Final = f"{REPOSITORY}/tree/v{_RELEASE}#in-a-cluster says how to install it"

_ERROR: Final = re.compile(
    r"error: |Error: |Error from server|Unable to connect|The connection to the server"
    r"|Error in configuration|error parsing|Client\.Timeout|See 'kubectl"
)
_FROM_SERVER: Final = re.compile(r"Error from server(?: \((\w+)\))?: (.*)", re.DOTALL)
_FORBIDDEN: Final = re.compile(
    r'User ".+?" cannot \w+ resource "(?P<resource>[\w./-]+)"'
    r'(?: in API group "(?P<group>[\w.-]*)")?'
    r'(?: (?:in the namespace "(?P<namespace>[\w.-]+)"|at the cluster scope))?'
)


def is_error(line: str) -> bool:
    return bool(_ERROR.match(line))


def of_text(text: str, code: int) -> PycrictlError:
    lines = [line for line in text.splitlines() if not line.startswith("See 'kubectl")]
    line = lines[-1] if lines else ""
    if match := _FROM_SERVER.fullmatch(line):
        return _of_reason(match[1] or "", match[2])
    if "You must be logged in to the server" in line:
        return _unauthorized()
    if line.startswith(("Unable to connect", "The connection to the server")):
        return _unreachable(line.partition(" - did you")[0])
    if not line:
        return ConnectError(f"kubectl ended with status {code}")
    said = re.sub(r"^[Ee]rror: ", "", line)
    return UsageError(f"kubectl: {said}", hint="see 'kubectl options' and 'kubectl config view'")


def of_answer(refusal: UpgradeRefused) -> PycrictlError:
    status = _status(refusal.body)
    message = str(status.get("message") or "")
    reason = str(status.get("reason") or "")
    text = message or refusal.body.decode(errors="replace").strip() or "no reason"
    match refusal.status:
        case 401:
            return _unauthorized()
        case 403:
            return forbidden(message)
        case 404 if reason == "NotFound" and status.get("details", {}).get("name"):
            return _not_found(message)
        case 404:
            return Unimplemented(f"the API server does not know {GROUP}/{VERSION}")
        case 405:
            return Unimplemented(f"not served for that pod: {text}")
        case 500 | 502 if not status:  # kubectl proxy itself
            return Unavailable(f"cannot reach the API server: {text}", hint=_WHICH_SERVER)
        case 503 if message and not message.startswith("error trying to reach service"):
            return Unavailable(f"the agent answered: {message}", hint=_AGENTS)
        case 503:
            return not_available(text)
        case 429:
            return Unavailable(f"the agent is busy: {text}")
    return RuntimeFault(f"the API server answered {refusal.status}: {text}")


def not_installed() -> PycrictlError:
    return Unimplemented("the agent is not installed in this cluster", hint=INSTALL)


def not_available(text: str) -> PycrictlError:
    return Unavailable(
        f"the agent is installed but does not answer: {text}",
        hint=f"{_AGENTS}; kubectl describe apiservice {VERSION}.{GROUP}",
    )


def other_version() -> PycrictlError:
    return Unimplemented(
        "the cluster's agent is older than this program and too old for this command", hint=INSTALL
    )


def _of_reason(reason: str, message: str) -> PycrictlError:
    match reason:
        case "Forbidden":
            return forbidden(message)
        case "NotFound":
            return _not_found(message)
        case "ServiceUnavailable":
            return not_available(message)
        case "Unauthorized":
            return _unauthorized()
    named = f" ({reason})" if reason else ""
    return RuntimeFault(f"the API server refused{named}: {message}", code=reason or "Unknown")


def _not_found(message: str) -> PycrictlError:
    kind = message.partition(" ")[0].partition(".")[0]
    everywhere = "" if kind == "nodes" else " -A"
    hint = f"'kubectl get {kind}{everywhere}' lists them" if kind.isalpha() else None
    return NotFound(message, code="NotFound", details=message, hint=hint)


def _unreachable(text: str) -> PycrictlError:
    text = re.sub(r"^Unable to connect to the server: ", "cannot reach the API server: ", text)
    return ConnectError(text[:1].lower() + text[1:], hint=_WHICH_SERVER)


def _unauthorized() -> PycrictlError:
    return Denied(
        "the API server does not accept the credential",
        hint="log in again; 'kubectl config view --minify' shows the user",
    )


def forbidden(message: str) -> PycrictlError:
    """Return the error for a missing permission, with the ClusterRole that grants it."""
    hint = None
    if match := _FORBIDDEN.search(message):
        role = VIEW_ROLE if match["group"] == GROUP else "view"
        if match["resource"] == f"pods/{COPIES}":
            role = COPY_ROLE
        elif match["resource"] == "pods/exec":
            role = "edit"
        kind = "rolebinding" if match["namespace"] else "clusterrolebinding"
        hint = f"bind the ClusterRole {role}: see kubectl create {kind} --help"
    return Denied(message or "forbidden", code="Forbidden", details=message, hint=hint)


def _status(body: bytes) -> dict[str, Any]:
    document = parsed(body)
    if document.get("kind") != "Status":
        return {}
    return {**document, "details": mapping(document.get("details"))}
