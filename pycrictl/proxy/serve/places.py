"""Shares of the places of a server, for those who have not shown yet that they may be there. Pure.

Whoever comes gets in. If there is no place left, the user who has most guests waiting loses the
oldest of them, and root loses one only if nobody else has any. So nobody is kept out by others
however many come, and of one's own guests the newest stay, who may be about to speak.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from pycrictl.wire import limits

ROOT: Final = 0

GuestT = TypeVar("GuestT", bound=Hashable)


class Places(Generic[GuestT]):
    """The guests of a server.

    Args:
        count: how many places there are.

    Attributes:
        settled: how many have shown that they may be there. They are never asked to go.
    """

    def __init__(self, count: int) -> None:
        self.settled = 0
        self._count = count
        self._owners: dict[GuestT, int] = {}
        self._waiting: dict[int, dict[GuestT, float]] = {}  # since when; the oldest first

    @property
    def waiting(self) -> list[GuestT]:
        return list(self._owners)

    def enter(self, guest: GuestT, owner: int, now: float) -> GuestT | None:
        """Give a guest a place; return the one that has to go for it, which may be itself."""
        self._owners[guest] = owner
        self._waiting.setdefault(owner, {})[guest] = now
        if self.settled + len(self._owners) <= self._count:
            return None
        most = max(self._waiting, key=lambda uid: (uid != ROOT, len(self._waiting[uid])))
        oldest = next(iter(self._waiting[most]))
        self.leave(oldest)
        return oldest

    def leave(self, guest: GuestT) -> None:
        owner = self._owners.pop(guest)
        share = self._waiting[owner]
        del share[guest]
        if not share:
            del self._waiting[owner]

    def settle(self, guest: GuestT) -> None:
        """Let a guest stay as long as it likes; ``settled`` is to be lowered when it goes."""
        self.leave(guest)
        self.settled += 1

    def overdue(self, now: float) -> list[GuestT]:
        """Return the guests who have waited for too long, which is less when it is crowded.

        What others do makes no difference to root.
        """
        found = []
        taken = self.settled + len(self._owners)
        for owner, share in self._waiting.items():
            is_crowded = 2 * (len(share) if owner == ROOT else taken) >= self._count
            patience_s = limits.CROWDED_HEAD_S if is_crowded else limits.HEAD_S
            for guest, since in share.items():
                if now - since < patience_s:
                    break
                found.append(guest)
        return found
