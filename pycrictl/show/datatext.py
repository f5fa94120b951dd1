"""Data as text: JSON, and YAML spelled as Go's encoder spells it. Pure.

JSON is indented by two spaces; keys are sorted, except in message documents, which keep the order
of the proto file. YAML is in block style, with dashes in their parent's column; lines are never
folded. Its strings are quoted only if a parser would read them as another type, or if they contain
unprintable characters; strings of several lines are in literal style.
"""

from __future__ import annotations

import json
import re
from functools import cache
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import yaml


def document_json(document: Any, *, is_ordered: bool = False) -> str:
    """Return data as JSON; with sorted keys, ``<``, ``>`` and ``&`` are escaped as in Go."""
    text = json.dumps(whole(document), ensure_ascii=False, indent=2, sort_keys=not is_ordered)
    return _escaped(text) if is_ordered else _for_html(text)


def compact_json(document: Any) -> str:
    return _for_html(
        json.dumps(whole(document), ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    )


def whole(value: Any) -> Any:
    """Return data with numbers as Go writes them: without a zero fraction."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 1e21 else value
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    return [whole(item) for item in value] if isinstance(value, list) else value


def _for_html(text: str) -> str:
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return _escaped(text)


def _escaped(text: str) -> str:
    """Escape unprintable characters in the strings of a JSON ``text``, as ``units.escape`` does.

    JSON itself escapes only control characters below 0x20. Terminals act on others as well, and
    characters that are invisible or change the writing direction can hide text.
    """
    if text.isascii() and "\x7f" not in text:
        return text
    escapes = {ord(char): encode_basestring_ascii(char)[1:-1] for char in _unprintable(text)}
    return text.translate(escapes | {0x7F: "\\u007f"})


def _unprintable(text: str) -> set[str]:
    """Return the unprintable characters of ``text``, except line breaks and tabs."""
    if text.isprintable():
        return set()
    return {char for char in set(text) if not char.isprintable() and char not in "\n\t"}


# YAML

_NO_FOLDING: Final = 2**31 - 1
_STRING: Final = "tag:yaml.org,2002:str"

# Quoted by Go's encoder in addition to the words and numbers of YAML 1.1 (as in PyYAML).
_QUOTED: Final = re.compile(
    r"[yYnN]|[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?0[xXbBoO][0-9a-fA-F]+|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}"
)
# Empty last lines, after which libyaml would end the whole document with dots.
_EMPTY_END: Final = re.compile("(?:^|\n)\n\\Z")


def document_yaml(document: Any) -> str:
    import yaml  # noqa: PLC0415 - not for tables

    text: str = yaml.dump(
        whole(document),
        Dumper=_dumper(),
        default_flow_style=False,
        allow_unicode=True,
        width=_NO_FOLDING,
    )
    # Only double-quoted strings contain such characters.
    odd = {} if text.isascii() else {ord(char): _yaml_escape(char) for char in _unprintable(text)}
    return text.translate(odd)


def _yaml_escape(char: str) -> str:
    return f"\\U{ord(char):08X}" if ord(char) > 0xFFFF else f"\\u{ord(char):04X}"


@cache
def _dumper() -> Any:
    import yaml  # noqa: PLC0415 - the same

    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    class Dumper(base):  # type: ignore[misc]  # one of two classes
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def string(dumper: Any, text: str) -> yaml.ScalarNode:
        tag = dumper.resolve(yaml.ScalarNode, text, (True, False))
        is_ambiguous = tag != _STRING or _QUOTED.fullmatch(text.replace("_", ""))
        style = "|" if "\n" in text else None
        if is_ambiguous or _EMPTY_END.search(text) or _unprintable(text):
            style = '"'
        node: yaml.ScalarNode = dumper.represent_scalar(_STRING, text, style=style)
        return node

    Dumper.add_representer(str, string)
    return Dumper
