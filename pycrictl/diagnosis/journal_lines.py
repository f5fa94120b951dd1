"""What the journal's lines of the kubelet and the runtime say of pods. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from pycrictl.diagnosis.facts import Line
from pycrictl.kube.pods import Pod, PodImage

if TYPE_CHECKING:
    from pycrictl.logs.journal import JournalLine

JOURNAL_LINES: Final = 200
JOURNAL_CHARS: Final = 2000
_SANDBOX: Final = (
    r"PodSandboxMetadata\{Name:(?P<name>[^,]+),Uid:(?P<uid>[^,]*),Namespace:(?P<ns>[^,]+)"
)
_KUBELET: Final = r'pods?="(?P<ns>[^"/]+)/(?P<name>[^"/]+)"'
_START_FAILED: Final = r"(?P<role>init|ephemeral)? ?container (?P<name>\S+) start failed in pod "
_NOT_STARTED: Final = (
    r'failed to \\"StartContainer\\" for \\"([^"\\]+)\\" with (\w+): \\"(.*?)(?<!\\)\\"(?=[",])'
)


def whole(lines: Iterable[JournalLine]) -> list[JournalLine]:
    """Join the lines of klog's values of several lines, which systemd parts: ``output=<``."""
    found: list[JournalLine] = []
    for line in lines:
        before = found[-1].message if found else ""
        if line.message.startswith("\t") and before.endswith(("=<", "\\n")):
            text = json.dumps(f"{line.message[1:]}\n")[1:-1]
            quote = '"' if before.endswith("=<") else ""
            found[-1] = found[-1]._replace(message=f"{before.removesuffix('<')}{quote}{text}")
        elif line.message == " >" and before.endswith("\\n"):
            found[-1] = found[-1]._replace(message=f'{before}"')
        else:
            found.append(line)
    return found


def about(
    journal: Iterable[JournalLine], namespace: str, name: str, uid: str, ids: Sequence[str]
) -> tuple[Line, ...]:
    words = [f'"{namespace}/{name}"', *filter(None, (uid, *ids))]
    found = [
        Line(line.at_s, line.unit, line.message[:JOURNAL_CHARS])
        for line in journal
        if any(word in line.message for word in words) or _names(line, namespace, name)
    ]
    return tuple(found[-JOURNAL_LINES:])


def waiting_in(journal: Iterable[Line]) -> dict[str, PodImage]:
    """Return the containers of a pod that wait, as the kubelet last said, with their images."""
    found: dict[str, PodImage] = {}
    roles: dict[str, str] = {}
    for line in journal:
        if match := re.search(_START_FAILED, line.message):
            roles[match["name"]] = {"init": "init", "ephemeral": "debug"}.get(match["role"], "")
        for name, reason, message in re.findall(_NOT_STARTED, line.message):
            message = re.sub(r'\\+"', '"', message)
            image = re.search(r'image (?:tag )?"([^"]+)"', message)
            known = found[name].image if name in found else ""
            found[name] = PodImage(
                name, image[1] if image else known, reason, message, role=roles.get(name, "")
            )
    return found


def pod_named(journal: Sequence[JournalLine], text: str) -> Pod | None:
    """Return the pod with a NAME or NAMESPACE/NAME that the journal mentions."""
    for line in reversed(journal):
        for pattern in (_SANDBOX, _KUBELET):
            found = re.search(pattern, line.message)
            if found and text in (found["name"], f"{found['ns']}/{found['name']}"):
                uid = found.groupdict().get("uid", "")
                return Pod(found["ns"], found["name"], uid, "", (), ())
    return None


def without_sandbox(journal: Iterable[JournalLine], since_s: float) -> list[str]:
    """Return the pods, NAMESPACE/NAME, whose last attempt to create a sandbox failed.

    Attempts before ``since_s`` do not count, as the pod may have been deleted.
    """
    failed: dict[str, None] = {}
    for line in journal:
        found = re.search(_SANDBOX, line.message)
        if found is None or line.at_s < since_s or "RunPodSandbox for" not in line.message:
            continue
        pod = f"{found['ns']}/{found['name']}"
        if "returns sandbox id" in line.message:
            failed.pop(pod, None)
        elif " failed" in line.message:
            failed[pod] = None
    return list(failed)


def _names(line: JournalLine, namespace: str, name: str) -> bool:
    found = re.search(_SANDBOX, line.message)
    return found is not None and (found["ns"], found["name"]) == (namespace, name)
