"""The life of a copy at its node, as a table. Pure.

A copy has one state, and what happens to it is an event: reported by the thread that reads or
writes the container's files, requested by the client, or decided by the service. ``TRANSITIONS``
has every pair of state and event that can occur; a missing pair is a bug. Its rules are:

1. A copy out of a container begins in MEASURING, while its archive is made. One into a container
   begins in WAITING, as its client has the archive.
2. Connections come and go. The first one turns WAITING into COPYING; there is no way back, because
   an interrupted copy resumes over the next connection.
3. A copy into a container is COMMITTING as soon as only its thread still has to finish: the
   thread may be moving files into place, so neither a silent client nor a stopping server may
   end the copy any more.
4. A copy that is given up (abandoned by its client, expired, stopped with its server) still has
   a thread, which is told to end. Until it ends, the state says how the copy will end. A thread
   that had already put everything in place wins: the copy is DONE.
5. Nothing changes a copy that is over.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """The state of a copy."""

    MEASURING = "measuring"
    WAITING = "waiting"
    COPYING = "copying"
    COMMITTING = "committing"

    ABANDONING = "abandoning"
    EXPIRING = "expiring"
    STOPPING = "stopping"

    DONE = "done"
    FAILED = "failed"
    ABANDONED = "abandoned"
    EXPIRED = "expired"
    STOPPED = "stopped"
    REFUSED = "refused"
    """It never began: a missing right, a quota, no such container, or an invalid request."""

    @property
    def is_over(self) -> bool:
        """Whether the copy has ended, however it did."""
        return self in _OVER


class Event(StrEnum):
    """What can happen to a copy."""

    MADE = "made"
    """The archive of a copy out of a container is complete."""

    ATTACHED = "attached"
    """The client has opened a connection."""

    ARRIVED = "arrived"
    """The archive for a container has arrived whole, and may become visible."""

    SUCCEEDED = "succeeded"
    """Everything is in place: in the container, or at the client."""

    FAILED = "failed"

    ABANDONED = "abandoned"
    """The client gave it up."""

    EXPIRED = "expired"
    """The client was silent for too long."""

    STOPPED = "stopped"
    """The server stops."""


_OVER: Final = frozenset(
    {State.DONE, State.FAILED, State.ABANDONED, State.EXPIRED, State.STOPPED, State.REFUSED}
)


def _ending(state: State, end: State) -> dict[Event, State]:
    return {**dict.fromkeys(Event, state), Event.SUCCEEDED: State.DONE, Event.FAILED: end}


_GIVEN_UP: Final = {
    Event.ABANDONED: State.ABANDONING,
    Event.EXPIRED: State.EXPIRING,
    Event.STOPPED: State.STOPPING,
}
_OPEN: Final = {
    Event.ATTACHED: State.COPYING,
    Event.ARRIVED: State.COMMITTING,
    Event.SUCCEEDED: State.DONE,
    Event.FAILED: State.FAILED,
    **_GIVEN_UP,
}

TRANSITIONS: Final[dict[State, dict[Event, State]]] = {
    State.MEASURING: {
        Event.MADE: State.WAITING,
        Event.ATTACHED: State.MEASURING,
        Event.FAILED: State.FAILED,
        **_GIVEN_UP,
    },
    State.WAITING: _OPEN,
    State.COPYING: _OPEN,
    State.COMMITTING: {
        Event.ATTACHED: State.COMMITTING,
        Event.ARRIVED: State.COMMITTING,
        Event.SUCCEEDED: State.DONE,
        Event.FAILED: State.FAILED,
        Event.ABANDONED: State.ABANDONING,
        Event.EXPIRED: State.COMMITTING,
        Event.STOPPED: State.COMMITTING,
    },
    State.ABANDONING: _ending(State.ABANDONING, State.ABANDONED),
    State.EXPIRING: _ending(State.EXPIRING, State.EXPIRED),
    State.STOPPING: _ending(State.STOPPING, State.STOPPED),
}


def after(state: State, event: Event) -> State:
    """Return the state after an event; a copy that is over keeps its state."""
    return state if state.is_over else TRANSITIONS[state][event]
