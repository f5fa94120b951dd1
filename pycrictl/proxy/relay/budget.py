"""What the calls that the proxy answers hold of its memory, of all clients together. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pycrictl.wire import limits

_CALL_BYTES: Final = 4096  # what a call costs without its content


class Budget:
    """Past ``limits.OWN_BODIES_BYTES`` the client that holds most loses its largest call.

    So nobody who asks for little is refused for the sake of others, however much they ask for.
    """

    def __init__(self) -> None:
        self.held_bytes = 0
        self.refused = 0
        self._shares: set[Share] = set()

    def share(self, give_up: Callable[[int, float], object]) -> Share:
        """Return the share of one more client.

        Args:
            give_up: ends a call of it, which ``drop`` has already been called for; it gets the
                stream and the time.
        """
        return Share(self, give_up)

    def _added(self, share: Share, size_bytes: int, now: float) -> None:
        self._shares.add(share)
        self.held_bytes += size_bytes
        while self.held_bytes > limits.OWN_BODIES_BYTES:
            self.refused += 1
            max(self._shares, key=lambda share: share.held_bytes).lose_largest(now)

    def _dropped(self, share: Share, size_bytes: int) -> None:
        self.held_bytes -= size_bytes
        if not share.held_bytes:
            self._shares.discard(share)


class Share:
    """What the calls of one client hold."""

    def __init__(self, budget: Budget, give_up: Callable[[int, float], object]) -> None:
        self.held_bytes = 0
        self._budget = budget
        self._give_up = give_up
        self._sizes: dict[int, int] = {}

    def add(self, stream_id: int, size_bytes: int, now: float) -> None:
        """Let a call hold more, or begin. It may be given up for that, or another one."""
        if stream_id not in self._sizes:
            self._sizes[stream_id] = 0
            size_bytes += _CALL_BYTES
        self._sizes[stream_id] += size_bytes
        self.held_bytes += size_bytes
        self._budget._added(self, size_bytes, now)

    def drop(self, stream_id: int) -> None:
        """Let go of what a call holds, if it holds anything."""
        size_bytes = self._sizes.pop(stream_id, 0)
        self.held_bytes -= size_bytes
        self._budget._dropped(self, size_bytes)

    def lose_largest(self, now: float) -> None:
        """Give up the largest call; of several the one that began last."""
        stream_id = max(self._sizes, key=lambda stream_id: (self._sizes[stream_id], stream_id))
        self.drop(stream_id)
        self._give_up(stream_id, now)
