"""kubectl's JSONPath on documents: single paths, and templates around them. Pure.

A *path* is ``.metadata.name``, ``$.items[?(@.state=="X")].id`` or ``{.id}``. Its steps are

- ``.name``: any characters but ``.,[]${}@()=<>!&|`` and spaces; a backslash takes one of these
  as it is;
- ``..name``: at any depth;
- ``*`` and ``[*]``: all values of a list or an object;
- ``[0]``, ``[-1]``, ``[1:]``, ``[::2]``: elements of a list;
- ``['name']``: the key as it stands, otherwise the path that its dots make, as kubectl reads it;
- ``[0,2]``, ``['a','b']``: all that the first leads to, then all that the second leads to;
- ``[?(@.a)]``, ``[?(@.a == 'x')]``: what has a value, or one that compares as given with text, a
  number, ``true``, ``false`` or another path's value.

A *template* is text with paths in braces, and ``{range PATH}…{end}`` around what is repeated for
each match. What the data lacks yields nothing, and values of different types are unequal.
"""

from __future__ import annotations

from pycrictl.show.jsonpath.evaluation import JsonPathError
from pycrictl.show.jsonpath.path import JsonPath
from pycrictl.show.jsonpath.template import Template, value_text

__all__ = ["JsonPath", "JsonPathError", "Template", "value_text"]
