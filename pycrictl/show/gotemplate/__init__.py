"""Go templates, as ``--output go-template`` takes them. Pure.

What administrators write works as in Go's ``text/template``: fields, ``if``, ``else if``,
``range``, ``with``, ``break``, ``continue``, variables, pipelines, parentheses, trimming of white
space, comments, Go's functions and crictl's own ``json title lower upper``. A key that the data
lacks is an error. ``define``, ``template``, ``block`` and ``call`` are refused by name, and so are
the rarer verbs of ``printf``. Numbers are numbers here: crictl keeps them as text, so that
``{{if .status.exitCode}}`` is always true there.

The stages are the usual ones: ``lexer`` (text to tokens), ``parser`` (tokens to ``nodes``), and
``nodes`` (with data to text), with ``functions`` and ``formatting`` below them.
"""

from __future__ import annotations

from typing import Any

from pycrictl.show.gotemplate.nodes import Run, TemplateError
from pycrictl.show.gotemplate.parser import parse

__all__ = ["GoTemplate", "TemplateError"]


class GoTemplate:
    """A template that was parsed."""

    def __init__(self, text: str) -> None:
        self._nodes = parse(text)

    def render(self, data: Any) -> str:
        """Return the text that the template makes of a document."""
        run = Run(data)
        run.walk(self._nodes, data)
        return "".join(run.output)
