"""Rules: a number, a sentence and a source each, kept at the test that checks them."""

from __future__ import annotations

from typing import Final, NoReturn

import pytest

OPEN: Final = "open in the KEP: our choice"
PROGRESS: Final = "KEP-5334, Design Details"
COPY: Final = "KEP-4582, Design Details"
LIMIT: Final = "parallel pull limit, draft, Proposal"

SKEW: Final = (404, 405)
"""Answers of a server that does not know a route, where what it is about exists (KEP-5334, Version
Skew Strategy). Clients take them as "not offered"."""

NOT_IMPLEMENTED: Final = "not implemented: "


def rule(number: str, sentence: str, source: str = OPEN) -> pytest.MarkDecorator:
    """Mark the test of a rule."""
    return pytest.mark.rule(number, sentence, source)


def not_implemented(what: str) -> NoReturn:
    """End a test whose rule speaks of something that the endpoint does not have."""
    pytest.skip(NOT_IMPLEMENTED + what)
