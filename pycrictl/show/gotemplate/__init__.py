"""Go templates, as ``--output go-template`` takes them. Pure.

What administrators write works as in Go's ``text/template``: fields, ``if``, ``else if``,
``range``, ``with``, ``break``, ``continue``, variables, pipelines, parentheses, trimming of white
space, comments, Go's functions and crictl's own ``json title lower upper``. A key that the data
lacks is an error. ``define``, ``template``, ``block`` and ``call`` are refused by name, and so are
``%[2]s`` and ``%*d`` in ``printf``. Numbers are numbers here: crictl keeps them as text, so that
``{{if .status.exitCode}}`` is always true there.

The stages are the usual ones: ``lexer`` (text to tokens), ``parser`` (tokens to ``nodes``), and
``evaluator`` (nodes and data to text), with ``functions``, ``printf`` and ``formatting`` below it.
"""

from __future__ import annotations

from typing import Any

from pycrictl.show.gotemplate.evaluator import evaluate
from pycrictl.show.gotemplate.nodes import TemplateError
from pycrictl.show.gotemplate.parser import parse

__all__ = ["Template", "TemplateError"]


class Template:
    """A template that was parsed.

    Raises:
        TemplateError: it is not a template, or uses something unsupported.
    """

    def __init__(self, text: str) -> None:
        self._nodes = parse(text)

    def render(self, data: Any) -> str:
        """Return the text that the template makes of a document.

        Raises:
            TemplateError: the data lacks what the template asks for.
        """
        return evaluate(self._nodes, data)
