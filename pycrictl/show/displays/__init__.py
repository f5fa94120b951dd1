"""Displays of progress: bars, lines, JSON or nothing, for pulls and for copies.

``outlet`` chooses the form and the stream; ``pull_lines`` and ``copies`` open the display. Every
display has ``show`` (update it to a new state; to be called at regular intervals), ``note`` (print
one line, above any bars), ``end`` (report the end of something that is not shown again) and
``close`` (leave the final state and a usable terminal, also after Ctrl-C; idempotent). Displays are
not thread-safe.

A display never ends a pull or a copy: when its terminal or pipe is closed, it falls silent. Only
the loss of a standard output that carries the command's result raises an error.
"""

from __future__ import annotations

from typing import Literal

Mode = Literal["auto", "bar", "plain", "json", "none"]
"""Values of ``--progress``; defined here, as commands declare options without loading a display."""
