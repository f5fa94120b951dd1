from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest

from pycrictl.base.errors import Exhausted
from pycrictl.proxy.serve.stream_server import (
    COPY_PATH,
    PROGRESS_PATH,
    Tokens,
)


def issue(tokens: Tokens, payload: object, *, now: float) -> str:
    """Return the path of a URL."""
    return urlsplit(tokens.issue(PROGRESS_PATH, payload, now=now)).path


def test_a_token_has_192_bits_fits_in_a_url_and_is_not_kept() -> None:
    tokens = Tokens()
    token = issue(tokens, "payload", now=0)
    assert re.fullmatch(r"/progress/[A-Za-z0-9_-]{32}", token)
    assert token != issue(tokens, "payload", now=0)
    assert token.removeprefix(PROGRESS_PATH) not in repr(vars(tokens))
    assert tokens.redeem(token.replace(PROGRESS_PATH, COPY_PATH), now=0) is None
    assert tokens.redeem(token, now=0) == "payload"
    assert tokens.redeem("\udcff", now=0) is None  # a byte of a URL that is not UTF-8


def test_a_token_works_once_and_until_it_expires() -> None:
    tokens = Tokens(lifetime_s=10, max_outstanding=3)
    first, second = (issue(tokens, number, now=number) for number in range(2))
    assert tokens.redeem("made up", now=1) is None
    assert tokens.is_valid(first, now=9.9)
    assert tokens.redeem(first, now=9.9) == 0
    assert not tokens.is_valid(first, now=9.9)
    assert tokens.redeem(first, now=9.9) is None
    third = issue(tokens, 2, now=10)
    assert tokens.outstanding(10.9) == 2
    assert tokens.redeem(second, now=11) is None
    assert tokens.outstanding(11) == 1
    assert tokens.redeem(third, now=11) == 2
    assert (tokens.outstanding(11), tokens.refused) == (0, 0)
    for _ in range(3):
        issue(tokens, 3, now=11)
    said = "3 stream URLs are waiting to be opened; try again later"
    with pytest.raises(Exhausted, match=said) as caught:
        issue(tokens, 3, now=20.9)
    assert caught.value.code == "ResourceExhausted"
    assert caught.value.hint == "a URL that nobody opens expires after 10s"
    assert tokens.refused == 1
    assert issue(tokens, 3, now=21)
