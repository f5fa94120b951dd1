from __future__ import annotations

import re

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pycrictl.errors import Exhausted
from pycrictl.proxy.serve.tokens import LIFETIME_S, MAX_OUTSTANDING, Tokens


def test_a_token_has_192_bits_fits_in_a_url_and_is_not_kept() -> None:
    tokens = Tokens[str]()
    token = tokens.issue("pod", "payload", now=0)
    assert re.fullmatch(r"[A-Za-z0-9_-]{32}", token)
    assert token != tokens.issue("pod", "payload", now=0)
    assert token not in repr(vars(tokens))
    assert tokens.redeem("\udcff", now=0) is None  # as bytes of a URL may be read


def test_one_pod_may_hold_half_and_others_still_get_theirs() -> None:
    tokens = Tokens[int]()
    for number in range(MAX_OUTSTANDING // 2):
        tokens.issue("greedy", number, now=0)
    with pytest.raises(Exhausted, match=r'500 stream URLs of pod "greedy" .* try again later'):
        tokens.issue("greedy", 0, now=0)
    for number in range(MAX_OUTSTANDING // 4):
        tokens.issue("second", number, now=0)
    with pytest.raises(Exhausted, match='of pod "second"') as caught:
        tokens.issue("second", 0, now=0)
    assert caught.value.code == "ResourceExhausted"
    assert caught.value.hint == "a URL that nobody opens expires after 1m0s"
    assert tokens.issue("modest", 0, now=0)
    assert tokens.issue("greedy", 0, now=LIFETIME_S)


class TokenRules(RuleBasedStateMachine):
    MAX = 12

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.made: list[str] = []
        self.good: dict[str, tuple[str, int, float]] = {}
        self.tokens = Tokens[int](lifetime_s=10, max_outstanding=self.MAX, source=self.source)

    def source(self, count: int) -> str:
        self.made.append(f"token-{len(self.made)}")
        return self.made[-1]

    @rule(pod=st.sampled_from("abc"))
    def issue(self, pod: str) -> None:
        held = sum(holder == pod for holder, _, _ in self.good.values())
        if held < self.MAX - len(self.good):
            payload = len(self.made)
            token = self.tokens.issue(pod, payload, now=self.now)
            self.good[token] = (pod, payload, self.now + 10)
        else:
            with pytest.raises(Exhausted, match="try again later"):
                self.tokens.issue(pod, -1, now=self.now)

    @precondition(lambda self: self.made)
    @rule(data=st.data())
    def redeem(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.made))
        _, payload, _ = self.good.pop(token, (None, None, None))
        assert self.tokens.redeem(token, now=self.now) == payload

    @rule(seconds=st.integers(1, 12))
    def pass_time(self, seconds: int) -> None:
        self.now += seconds
        self.good = {token: kept for token, kept in self.good.items() if kept[2] > self.now}

    @invariant()
    def the_bound_holds_and_nothing_leaks(self) -> None:
        assert self.tokens.redeem("made up", now=self.now) is None
        assert self.tokens.outstanding(self.now) == len(self.good) <= self.MAX
        assert sum(self.tokens._held.values()) == len(self.good)
        assert all(self.tokens._held.values())


TestTokenRules = TokenRules.TestCase
TestTokenRules.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
