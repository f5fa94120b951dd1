"""Rules: a number, a sentence and a source each, as marks of the tests that check them."""

from __future__ import annotations

from typing import Final, NoReturn

import pytest

OPEN: Final = "open in the KEP: our choice"
PROGRESS: Final = "KEP-5334, Design Details"
COPY: Final = "KEP-4582, Design Details"
LIMIT: Final = "parallel pull limit, draft, Proposal"

NOT_IMPLEMENTED: Final = "not implemented: "


def rule(number: str, sentence: str, source: str = OPEN) -> pytest.MarkDecorator:
    """Mark the test of a rule."""
    return pytest.mark.rule(number, sentence, source)


def not_implemented(feature: str) -> NoReturn:
    """Skip a test whose rule is about something that the endpoint does not have."""
    pytest.skip(NOT_IMPLEMENTED + feature)
