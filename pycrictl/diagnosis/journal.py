"""Lines of the journal that are about one pod. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from pycrictl.diagnosis.facts import Line
from pycrictl.kube.pods import Pod

if TYPE_CHECKING:
    from pycrictl.kube.pods import Pod
    from pycrictl.logs.journal import JournalLine

MOST: Final = 200
LINE_CHARS: Final = 2000

_SANDBOX: Final = (
    r"PodSandboxMetadata\{Name:(?P<name>[^,]+),Uid:(?P<uid>[^,]*),Namespace:(?P<ns>[^,]+)"
)
_KUBELET: Final = r'pods?="(?P<ns>[^"/]+)/(?P<name>[^"/]+)"'


def about(
    journal: Iterable[JournalLine], namespace: str, name: str, uid: str, ids: Sequence[str]
) -> tuple[Line, ...]:
    """Return the last lines about a pod, the oldest first.

    Args:
        journal: lines of the kubelet and the runtime, the oldest first.
        namespace, name, uid: the pod's.
        ids: of its sandbox and containers, and names of images; empty ones are left out.
    """
    words = [f'"{namespace}/{name}"', *filter(None, (uid, *ids))]
    found = [
        Line(line.at_s, line.unit, line.message[:LINE_CHARS])
        for line in journal
        if any(word in line.message for word in words) or _names(line, namespace, name)
    ]
    return tuple(found[-MOST:])


def pod_named(journal: Sequence[JournalLine], text: str) -> Pod | None:
    """Return the pod of a NAME or NAMESPACE/NAME that the journal speaks of; None if it does not.

    Where there is no sandbox and nobody can be asked for pods, this is the only trace of one.
    """
    for line in reversed(journal):
        for pattern in (_SANDBOX, _KUBELET):
            found = re.search(pattern, line.message)
            if found and text in (found["name"], f"{found['ns']}/{found['name']}"):
                uid = found.groupdict().get("uid", "")
                return Pod(found["ns"], found["name"], uid, "", (), ())
    return None


def _names(line: JournalLine, namespace: str, name: str) -> bool:
    found = re.search(_SANDBOX, line.message)
    return found is not None and (found["ns"], found["name"]) == (namespace, name)
