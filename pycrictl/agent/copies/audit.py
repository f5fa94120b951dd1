"""What is said of each copy at its end: who copied what where, and what became of it. Pure."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import StrEnum

from pycrictl.agent.copies.session import Session
from pycrictl.servicelog import Whole


class End(StrEnum):
    """How a copy ends."""

    DONE = "done"
    FAILED = "failed"
    ABANDONED = "abandoned"
    """Its client gave it up."""

    EXPIRED = "expired"
    """Nothing was heard of its client for too long."""

    STOPPED = "stopped"
    """The agent was stopped; its client begins it anew with the next one."""

    REFUSED = "refused"
    """It never began: a right, a quota, no such container, or a request that is wrong."""


Audit = Callable[[Session, End], None]
"""Called once with each copy that is over or was refused, and how it ended."""


def fields_of(session: Session, end: End) -> dict[str, object]:
    """Return the fields of a copy's log line.

    A path is written whole: nobody shall hide its end behind a long beginning.
    """
    place, spec = session.place, session.spec
    return {
        "user": session.owner.name,
        "uid": session.owner.uid,
        "pod": f"{place.namespace}/{place.pod}",
        "container": place.container,
        "direction": spec.direction.value.lower(),
        "path": Whole(os.fsdecode(spec.path)),
        "size_bytes": session.size_bytes,
        "moved_bytes": session.offset,
        "end": end.value,
        "error": session.message if end in (End.FAILED, End.REFUSED) else "",
    }
