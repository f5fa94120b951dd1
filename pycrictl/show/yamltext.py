"""YAML text of data, spelled as Go's encoder spells it. Pure.

Block style, two spaces, dashes in their parent's column, lines never folded. Keys are in natural
order. Strings are quoted only where a reader would take them for something else, or where
something in them is not printable; those of several lines are in literal style.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pycrictl.show.jsontext import number_text, unprintable

if TYPE_CHECKING:
    import yaml

    Token = tuple[int, int, str]

_NO_FOLDING: Final = 2**31 - 1
_STRING: Final = "tag:yaml.org,2002:str"

# What Go's encoder quotes beside the words and numbers of YAML 1.1, which PyYAML knows.
_QUOTED: Final = re.compile(
    r"[yYnN]|[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?0[xXbBoO][0-9a-fA-F]+|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}"
)
# Empty last lines, after which libyaml would end the whole document with dots.
_EMPTY_END: Final = re.compile("(?:^|\n)\n\\Z")
_KEY_TOKEN: Final = re.compile(r"[0-9]+|.", re.DOTALL)


def document_yaml(document: Any) -> str:
    import yaml  # noqa: PLC0415 - not for tables

    text: str = yaml.dump(
        document,
        Dumper=_dumper(),
        default_flow_style=False,
        allow_unicode=True,
        width=_NO_FOLDING,
        sort_keys=False,
    )
    # Only strings in double quotes have any of these.
    odd = {ord(char): _escaped(char) for char in unprintable(text)} if not text.isascii() else {}
    return text.translate(odd)


def _escaped(char: str) -> str:
    return f"\\U{ord(char):08X}" if ord(char) > 0xFFFF else f"\\u{ord(char):04X}"


def natural_order(text: str) -> list[Token]:
    """Return a sort key: runs of digits as numbers, letters after all other characters."""
    return [_token(token) for token in _KEY_TOKEN.findall(text)]


def _token(token: str) -> Token:
    if token[0].isdecimal() and token.isascii():
        # Without leading zeros the longer number is the greater one, however many digits it has.
        digits = token.lstrip("0")
        return (1, len(digits), digits)
    return (2 if token.isalpha() else 0, ord(token), "")


@cache
def _dumper() -> Any:
    import yaml  # noqa: PLC0415 - the same

    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    class Dumper(base):  # type: ignore[misc]  # one of two classes
        # Every scalar is given to the emitter as the text that it shall be.
        yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's)

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def scalar(dumper: yaml.SafeDumper, text: str, style: str | None = None) -> yaml.ScalarNode:
        return dumper.represent_scalar(_STRING, text, style=style)

    resolve: Any = yaml.SafeLoader("").resolve

    def string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        tag = resolve(yaml.ScalarNode, text, (True, False))
        is_ambiguous = tag != _STRING or _QUOTED.fullmatch(text.replace("_", ""))
        if is_ambiguous or _EMPTY_END.search(text) or unprintable(text):
            return scalar(dumper, text, '"')
        return scalar(dumper, text, "|" if "\n" in text else None)

    def mapping(dumper: yaml.SafeDumper, document: dict[str, Any]) -> yaml.MappingNode:
        items = sorted(document.items(), key=lambda item: natural_order(item[0]))
        return dumper.represent_mapping("tag:yaml.org,2002:map", items)

    Dumper.add_representer(dict, mapping)
    Dumper.add_representer(str, string)
    Dumper.add_representer(bool, lambda dumper, value: scalar(dumper, str(value).lower()))
    Dumper.add_representer(type(None), lambda dumper, value: scalar(dumper, "null"))
    Dumper.add_representer(int, lambda dumper, value: scalar(dumper, number_text(value)))
    Dumper.add_representer(float, lambda dumper, value: scalar(dumper, number_text(value)))
    return Dumper
