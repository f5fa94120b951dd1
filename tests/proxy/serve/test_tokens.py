from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest

from pycrictl.base.errors import Exhausted
from pycrictl.proxy.serve.stream_server import (
    COPY_PATH,
    LIFETIME_S,
    MAX_OUTSTANDING,
    PROGRESS_PATH,
    Tokens,
)


def issue(tokens: Tokens, pod: str, payload: object, *, now: float) -> str:
    """Return the path of a URL."""
    return urlsplit(tokens.issue(PROGRESS_PATH, pod, payload, now=now)).path


def test_a_token_has_192_bits_fits_in_a_url_and_is_not_kept() -> None:
    tokens = Tokens()
    token = issue(tokens, "pod", "payload", now=0)
    assert re.fullmatch(r"/progress/[A-Za-z0-9_-]{32}", token)
    assert token != issue(tokens, "pod", "payload", now=0)
    assert token.removeprefix(PROGRESS_PATH) not in repr(vars(tokens))
    assert tokens.redeem(token.replace(PROGRESS_PATH, COPY_PATH), now=0) is None
    assert tokens.redeem(token, now=0) == "payload"
    assert tokens.redeem("\udcff", now=0) is None  # a byte of a URL that is not UTF-8


def test_one_pod_may_hold_half_and_others_still_get_theirs() -> None:
    tokens = Tokens()
    for number in range(MAX_OUTSTANDING // 2):
        issue(tokens, "greedy", number, now=0)
    with pytest.raises(Exhausted, match=r'500 stream URLs of pod "greedy" .* try again later'):
        issue(tokens, "greedy", 0, now=0)
    for number in range(MAX_OUTSTANDING // 4):
        issue(tokens, "second", number, now=0)
    with pytest.raises(Exhausted, match='of pod "second"') as caught:
        issue(tokens, "second", 0, now=0)
    assert caught.value.code == "ResourceExhausted"
    assert caught.value.hint == "a URL that nobody opens expires after 1m0s"
    assert issue(tokens, "modest", 0, now=0)
    assert issue(tokens, "greedy", 0, now=LIFETIME_S)


def test_a_token_works_once_and_until_it_expires() -> None:
    tokens = Tokens(lifetime_s=10, max_outstanding=3)
    first, second = (issue(tokens, pod, number, now=number) for number, pod in enumerate("ab"))
    assert tokens.redeem("made up", now=1) is None
    assert tokens.is_valid(first, now=9.9)
    assert tokens.redeem(first, now=9.9) == 0
    assert not tokens.is_valid(first, now=9.9)
    assert tokens.redeem(first, now=9.9) is None
    third = issue(tokens, "c", 2, now=10)
    assert tokens.outstanding(10.9) == 2
    assert tokens.redeem(second, now=11) is None
    assert tokens.outstanding(11) == 1
    assert tokens.redeem(third, now=11) == 2
    assert (tokens.outstanding(11), tokens.refused) == (0, 0)
    for pod in "abc":
        issue(tokens, pod, 3, now=11)
    with pytest.raises(Exhausted, match="3 stream URLs are waiting to be opened; try again later"):
        issue(tokens, "d", 3, now=20.9)
    assert tokens.refused == 1
    assert issue(tokens, "d", 3, now=21)
    assert dict(tokens._held) == {"d": 1}  # pods without tokens are forgotten
