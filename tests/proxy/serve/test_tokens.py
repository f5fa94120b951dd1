from __future__ import annotations

import re

import pytest

from pycrictl.errors import Exhausted
from pycrictl.proxy.serve.tokens import LIFETIME_S, MAX_OUTSTANDING, Tokens


def test_a_token_has_192_bits_fits_in_a_url_and_is_not_kept() -> None:
    tokens = Tokens[str]()
    token = tokens.issue("pod", "payload", now=0)
    assert re.fullmatch(r"[A-Za-z0-9_-]{32}", token)
    assert token != tokens.issue("pod", "payload", now=0)
    assert token not in repr(vars(tokens))
    assert tokens.redeem("\udcff", now=0) is None  # a byte of a URL that is not UTF-8


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


def test_a_token_works_once_and_until_it_expires() -> None:
    tokens = Tokens[int](lifetime_s=10, max_outstanding=3)
    first, second = (tokens.issue(pod, number, now=number) for number, pod in enumerate("ab"))
    assert tokens.redeem("made up", now=1) is None
    assert tokens.redeem(first, now=9.9) == 0
    assert tokens.redeem(first, now=9.9) is None
    third = tokens.issue("c", 2, now=10)
    assert tokens.outstanding(10.9) == 2
    assert tokens.redeem(second, now=11) is None
    assert tokens.outstanding(11) == 1
    assert tokens.redeem(third, now=11) == 2
    assert (tokens.outstanding(11), tokens.refused) == (0, 0)
    for pod in "abc":
        tokens.issue(pod, 3, now=11)
    with pytest.raises(Exhausted, match="3 stream URLs are waiting to be opened; try again later"):
        tokens.issue("d", 3, now=20.9)
    assert tokens.refused == 1
    assert tokens.issue("d", 3, now=21)
    assert dict(tokens._held) == {"d": 1}  # pods without tokens are forgotten
