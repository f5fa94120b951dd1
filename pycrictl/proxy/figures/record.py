"""One PullImage call that is over, as the log, the history and the metrics have it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from pycrictl.foreign import INT64_MAX
from pycrictl.proxy.pulls.book import State

if TYPE_CHECKING:
    from pycrictl.proxy.pulls.limiter import PullEnd

_LONGEST_S: Final = 1e9
_MAX_NAME_CHARS: Final = 512
_MAX_CAUSE_CHARS: Final = 300


class Outcome(StrEnum):
    """How a call ended. ``GONE``: its caller hung up. ``REFUSED``: by the proxy, not the runtime.

    ``PRESENT``: the runtime had the image before.
    """

    PULLED = "pulled"
    PRESENT = "present"
    FAILED = "failed"
    REFUSED = "refused"
    GONE = "gone"

    @property
    def is_good(self) -> bool:
        """Whether the caller got its image."""
        return self in (Outcome.PULLED, Outcome.PRESENT)


@dataclass(frozen=True, slots=True)
class PullRecord:
    """What is kept of a call. It holds no secret.

    Attributes:
        ended_s: when it ended, in wall time.
        image: as the request spelled it.
        pod: ``NAMESPACE/NAME``; empty if the request named none.
        code: the name of the gRPC status; empty if the caller did not wait for one.
        cause: the last error, also that of an earlier attempt if the last one succeeded.
        waited_s: from the first attempt to the start of the pull.
        pulled_s: from then to the end.
        attempts: calls one after another, as for several credentials.
        is_joined: whether it waited for an equal one, which succeeded.
        digest: of what the tag named, or the image's ID where only that is known.
        got_bytes: of layers that were downloaded, compressed; None if not known, as the others.
        reused_bytes: of layers that were there.
        extracted_bytes: of layers that were unpacked, on disk.
        size_bytes: of the image as the runtime counts.
    """

    ended_s: float
    image: str
    pod: str
    outcome: Outcome
    code: str
    cause: str
    waited_s: float
    pulled_s: float
    attempts: int
    is_joined: bool
    digest: str = ""
    got_bytes: int | None = None
    reused_bytes: int | None = None
    extracted_bytes: int | None = None
    size_bytes: int | None = None

    @classmethod
    def of(cls, end: PullEnd, *, wall_s: float) -> PullRecord:
        """Return the record of a call that has just ended at ``wall_s``."""
        call = end.call
        began = call.started
        waited_until = call.ended if began is None else max(began, call.asked)
        if call.end is State.LEFT:
            outcome = Outcome.GONE
        elif call.is_refused:
            outcome = Outcome.REFUSED
        elif call.end is State.FAILED:
            outcome = Outcome.FAILED
        else:
            outcome = Outcome.PULLED if call.pull.takes_slot else Outcome.PRESENT
        return cls(
            ended_s=wall_s,
            image=call.reference[:_MAX_NAME_CHARS],
            pod="" if call.pod is None else str(call.pod)[:_MAX_NAME_CHARS],
            outcome=outcome,
            code=end.code,
            cause=(end.error or call.cause)[:_MAX_CAUSE_CHARS],
            waited_s=round(waited_until - call.asked, 3),
            pulled_s=round(max(call.ended - waited_until, 0.0), 3),
            attempts=call.attempt,
            is_joined=call.is_joined,
        )

    @property
    def rate(self) -> float | None:
        """Return downloaded bytes a second; None if nothing is known to be downloaded."""
        return self.got_bytes / self.pulled_s if self.got_bytes and self.pulled_s else None

    def document(self) -> dict[str, Any]:
        """Return it as the history has it: times in RFC 3339 and seconds, null if not known."""
        ended = datetime.fromtimestamp(self.ended_s, UTC).isoformat(timespec="milliseconds")
        return {
            "ended": ended.removesuffix("+00:00") + "Z",
            "image": self.image,
            "digest": self.digest or None,
            "pod": self.pod or None,
            "outcome": self.outcome.value,
            "code": self.code or None,
            "cause": self.cause or None,
            "waitedSeconds": self.waited_s,
            "pulledSeconds": self.pulled_s,
            "gotBytes": self.got_bytes,
            "reusedBytes": self.reused_bytes,
            "extractedBytes": self.extracted_bytes,
            "sizeBytes": self.size_bytes,
            "bytesPerSecond": None if self.rate is None else round(self.rate),
            "attempts": self.attempts,
            "joined": self.is_joined,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> PullRecord:
        """Read what ``document`` wrote.

        Raises:
            ValueError: it is something else.
        """
        try:
            return cls(
                ended_s=datetime.fromisoformat(document["ended"]).timestamp(),
                image=_text(document["image"]),
                pod=_text(document["pod"]),
                outcome=Outcome(document["outcome"]),
                code=_text(document["code"]),
                cause=_text(document["cause"]),
                waited_s=_seconds(document["waitedSeconds"]),
                pulled_s=_seconds(document["pulledSeconds"]),
                attempts=_count(document["attempts"]) or 0,
                is_joined=bool(document["joined"]),
                digest=_text(document["digest"]),
                got_bytes=_count(document["gotBytes"]),
                reused_bytes=_count(document["reusedBytes"]),
                extracted_bytes=_count(document["extractedBytes"]),
                size_bytes=_count(document["sizeBytes"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            raise ValueError("not the record of a pull") from None


def _text(value: object) -> str:
    if value is not None and not isinstance(value, str):
        raise TypeError
    return value or ""


def _count(value: object) -> int | None:
    if value is not None and not (type(value) is int and 0 <= value <= INT64_MAX):
        raise TypeError
    return value


def _seconds(value: object) -> float:
    if not isinstance(value, int | float) or not 0 <= value <= _LONGEST_S:
        raise TypeError
    return float(value)
