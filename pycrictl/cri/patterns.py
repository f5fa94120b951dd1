"""Regular expressions with which users select objects. Pure."""

from __future__ import annotations

import re
import warnings

from pycrictl.errors import UsageError
from pycrictl.units import quote


def compile_pattern(text: str, *, option: str) -> re.Pattern[str]:
    """A pattern to ``search`` names with; as in crictl's syntax classes such as ``\\d`` are ASCII.

    The dialect is Python's. What it reads otherwise than crictl's, such as ``[[:alpha:]]``, is
    refused. A pattern that backtracks without end is not guarded against; Ctrl-C ends it.

    Raises:
        UsageError: the pattern is invalid; the message names ``option``.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        try:
            return re.compile(text, re.ASCII)
        except FutureWarning:
            reason = "write [a-z] in place of classes such as [[:lower:]]"
        except (re.error, OverflowError, RecursionError) as exc:
            reason = str(exc)
    raise UsageError(f"{quote(text)} for {option} is not a valid regular expression: {reason}")
