"""The life of a copy, as the rules in ``life`` describe it."""

from __future__ import annotations

import pytest

from pycrictl.copy.service.life import TRANSITIONS, Event, State, after

OVER = {state for state in State if state.is_over}
ENDING = {State.ABANDONING, State.EXPIRING, State.STOPPING}


def test_every_state_can_end_and_no_end_can_change() -> None:
    assert {*TRANSITIONS} == {*State} - OVER
    for state, events in TRANSITIONS.items():
        assert OVER & {*events.values()}, state
        assert after(state, Event.FAILED).is_over
    for state in OVER:
        assert {after(state, event) for event in Event} == {state}


@pytest.mark.parametrize(
    ("events", "end"),
    [
        ("attached arrived succeeded", State.DONE),
        ("attached attached arrived arrived succeeded", State.DONE),
        ("attached failed", State.FAILED),
        ("attached abandoned failed", State.ABANDONED),
        ("attached expired failed", State.EXPIRED),
        ("attached stopped failed", State.STOPPED),
        ("attached arrived abandoned failed", State.ABANDONED),
    ],
)
def test_lives(events: str, end: State) -> None:
    for state in (State.WAITING, State.MEASURING):
        for word in ["made", *events.split()] if state is State.MEASURING else events.split():
            state = after(state, Event(word))
        assert state is end


def test_what_is_being_put_in_place_is_not_ended() -> None:
    for event in (Event.EXPIRED, Event.STOPPED, Event.ATTACHED, Event.ARRIVED):
        assert after(State.COMMITTING, event) is State.COMMITTING


def test_what_was_in_place_by_then_is_done() -> None:
    for state in ENDING:
        assert after(state, Event.SUCCEEDED) is State.DONE
        assert {after(state, event) for event in Event} <= {state, State.DONE, *OVER}


def test_a_pair_that_cannot_occur_is_a_bug() -> None:
    for state, event in ((State.MEASURING, Event.SUCCEEDED), (State.COPYING, Event.MADE)):
        with pytest.raises(KeyError):
            after(state, event)
