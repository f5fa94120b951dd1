"""What the journal of the kubelet and the runtime, and Events, say about pods. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from pycrictl.kube.pods import PodImage
from pycrictl.node.journal import JournalLine

MOST_LINES: Final = 200
MOST_CHARS: Final = 2000
"""The most lines about a pod, and the most characters of a line."""

_SANDBOX: Final = (
    r"PodSandboxMetadata\{Name:(?P<name>[^,]+),Uid:(?P<uid>[^,]*),Namespace:(?P<ns>[^,]+)"
)
_ERROR: Final = r'(?P<text>(?:[^"\\]|\\.)*)'
_CONTAINER: Final = r'containerName="(?P<name>[^"]*)"'
_SIGNS: Final = (
    ("sandbox-made", r"RunPodSandbox for .*returns sandbox id"),
    ("sandbox", rf'RunPodSandbox for .* failed.*?error="{_ERROR}"'),
    (
        "sandbox",
        r'\\?"(?:Create|Run)PodSandbox(?:Error)?\\?".*?(?P<text>rpc error: .*?)(?:\\*"+ pod=|$)',
    ),
    ("mount", r'(?:Mount|Attach)Volume.* for volume \\?"(?P<name>[^"\\]+)\\?".*? : (?P<text>.+)'),
    ("mount", r"error processing PVC (?P<name>\S+?): (?P<text>[^\n]+)"),
    ("unmounted", r"(?P<text>unmounted volumes=\[(?P<name>[^]]*)\].*)"),
    ("kill", r'with Kill(?:PodSandbox|Container)Error: \\*"(?P<text>.*?)\\*"(?:" pod=|$)'),
    ("pre-stop", rf'"PreStop hook failed" err="{_ERROR}".* {_CONTAINER}'),
    (
        "post-start",
        r'"StartContainer\W+for \W*(?P<name>[\w.-]+)\W+with PostStartHookError: (?P<text>.*)',
    ),
    (
        "probe",
        rf'"?Probe failed"? .*?probeType="(?P<probe>\w+)".* {_CONTAINER}(?:.*?output="{_ERROR})?',
    ),
    ("probe-passed", r'"SyncLoop \(probe\)" probe="(?P<probe>\w+)" status="(?:started|ready)"'),
    ("no-secret", r'retrieve pull secret.*secret \\*"(?P<text>[^"\\]+)\\*" not found'),
    ("evicted", r"Eviction manager: pod is evicted"),
)
_EVENTS: Final = {
    "FailedCreatePodSandBox": "sandbox",
    "FailedKillPod": "kill",
    "FailedPreStopHook": "pre-stop",
    "FailedPostStartHook": "post-start",
}
_START_FAILED: Final = r"(?P<role>init|ephemeral)? ?container (?P<name>\S+) start failed in pod "
_NOT_STARTED: Final = (
    r'failed to \\"StartContainer\\" for \\"([^"\\]+)\\" with (\w+): \\"(.*?)(?<!\\)\\"(?=[",])'
)


class Sign(NamedTuple):
    """A problem of a pod, or the end of a problem, as the journal or an Event reports it.

    Attributes:
        kind: ``sandbox`` (not created), ``sandbox-made``, ``mount``, ``unmounted`` (which volumes,
            but not why), ``kill``, ``pre-stop``, ``post-start``, ``probe``, ``probe-passed``,
            ``no-secret`` or ``evicted``.
        text: the error, or the output of a probe.
        name: the container, or the volume.
        probe: ``liveness``, ``readiness`` or ``startup``.
    """

    kind: str
    at_s: float
    text: str = ""
    name: str = ""
    probe: str = ""


def signs_in(lines: Iterable[JournalLine]) -> Iterator[Sign]:
    """Iterate over the signs in a journal's lines about one pod, the oldest first."""
    for line in lines:
        for kind, pattern in _SIGNS:
            if match := re.search(pattern, line.message):
                words = {key: _plain(word or "") for key, word in match.groupdict().items()}
                words["probe"] = words.get("probe", "").lower()
                yield Sign(kind, line.at_s, **words)


def sign_of(reason: str, message: str, container: str, at_s: float) -> Iterator[Sign]:
    """Iterate over the signs in an Event about a pod; texts on volumes are as in the journal."""
    kind, text = _EVENTS.get(reason, ""), " ".join(message.split())
    if reason == "Unhealthy" and (match := re.match(r"(\w+) probe failed: ?(.*)", text)):
        yield Sign("probe", at_s, match[2], container, match[1].lower())
    elif match := re.search(r"image pull secrets \(([^)]+)\)", text):
        yield Sign("no-secret", at_s, match[1])
    elif kind:
        is_bare = kind in ("pre-stop", "post-start")  # the Event names the hook alone
        yield Sign(kind, at_s, "" if is_bare else text, container)
    else:
        yield from signs_in([JournalLine(at_s, "", text)])


def _plain(text: str) -> str:
    """Return a text without its quoting, which may be nested."""
    return " ".join(re.sub(r'\\+"', '"', re.sub(r"\\+n", " ", text)).split()).strip('" ')


def whole(lines: Iterable[JournalLine]) -> list[JournalLine]:
    """Join klog's multi-line values (``output=<``), whose lines are entries of the journal."""
    joined: list[JournalLine] = []
    for line in lines:
        before = joined[-1].message if joined else ""
        if line.message.startswith("\t") and before.endswith(("=<", "\\n")):
            text = json.dumps(f"{line.message[1:]}\n")[1:-1]
            quote = '"' if before.endswith("=<") else ""
            joined[-1] = joined[-1]._replace(message=f"{before.removesuffix('<')}{quote}{text}")
        elif line.message == " >" and before.endswith("\\n"):
            joined[-1] = joined[-1]._replace(message=f'{before}"')
        else:
            joined.append(line)
    return joined


def about(
    journal: Iterable[JournalLine], namespace: str, name: str, uid: str, ids: Sequence[str]
) -> tuple[JournalLine, ...]:
    words = [f'"{namespace}/{name}"', *filter(None, (uid, *ids))]
    lines = [
        line._replace(message=line.message[:MOST_CHARS])
        for line in journal
        if any(word in line.message for word in words) or _names(line, namespace, name)
    ]
    return tuple(lines[-MOST_LINES:])


def waiting_in(journal: Iterable[JournalLine]) -> dict[str, PodImage]:
    """Return a pod's waiting containers with their images, as the kubelet last logged them."""
    images: dict[str, PodImage] = {}
    roles: dict[str, str] = {}
    for line in journal:
        if match := re.search(_START_FAILED, line.message):
            roles[match["name"]] = {"init": "init", "ephemeral": "debug"}.get(match["role"], "")
        for name, reason, message in re.findall(_NOT_STARTED, line.message):
            message = re.sub(r'\\+"', '"', message)
            image = re.search(r'image (?:tag )?"([^"]+)"', message)
            known = images[name].image if name in images else ""
            images[name] = PodImage(
                name, image[1] if image else known, reason, message, role=roles.get(name, "")
            )
    return images


def _names(line: JournalLine, namespace: str, name: str) -> bool:
    match = re.search(_SANDBOX, line.message)
    return match is not None and (match["ns"], match["name"]) == (namespace, name)
