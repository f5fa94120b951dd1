"""Lines of the journal about pods. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from pycrictl.diagnosis import facts
from pycrictl.kube.pods import Pod

if TYPE_CHECKING:
    from pycrictl.logs.journal import JournalLine

JOURNAL_LINES: Final = 200
JOURNAL_CHARS: Final = 2000

_SANDBOX: Final = (
    r"PodSandboxMetadata\{Name:(?P<name>[^,]+),Uid:(?P<uid>[^,]*),Namespace:(?P<ns>[^,]+)"
)
_KUBELET: Final = r'pods?="(?P<ns>[^"/]+)/(?P<name>[^"/]+)"'


def about(
    journal: Iterable[JournalLine], namespace: str, name: str, uid: str, ids: Sequence[str]
) -> tuple[facts.Line, ...]:
    words = [f'"{namespace}/{name}"', *filter(None, (uid, *ids))]
    found = [
        facts.Line(line.at_s, line.unit, line.message[:JOURNAL_CHARS])
        for line in journal
        if any(word in line.message for word in words) or _names(line, namespace, name)
    ]
    return tuple(found[-JOURNAL_LINES:])


def pod_named(journal: Sequence[JournalLine], text: str) -> Pod | None:
    """Return the pod of a NAME or NAMESPACE/NAME that the journal speaks of."""
    for line in reversed(journal):
        for pattern in (_SANDBOX, _KUBELET):
            found = re.search(pattern, line.message)
            if found and text in (found["name"], f"{found['ns']}/{found['name']}"):
                uid = found.groupdict().get("uid", "")
                return Pod(found["ns"], found["name"], uid, "", (), ())
    return None


def without_sandbox(journal: Iterable[JournalLine], since_s: float) -> list[str]:
    """Return the pods, NAMESPACE/NAME, whose sandbox could not be made at the last attempt.

    Earlier attempts than ``since_s`` do not count: the pod may have been deleted.
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
