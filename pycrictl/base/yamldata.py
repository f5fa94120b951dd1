"""JSON and YAML text as data: dictionaries, lists and scalars. Pure.

All YAML that this program accepts is read here. JSON is read as YAML too, but tabs and surrogate
escapes, which YAML lacks, are replaced first. Reading any text takes time and memory in proportion
to its length: aliases are refused, and nesting has a limit.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, Final

import yaml

from pycrictl.base.errors import ConfigError
from pycrictl.base.units import escape, parse_int

MAX_NESTING: Final = 64

_STRING_TAGS: Final = ("!", "tag:yaml.org,2002:str")
# Values that YAML 1.1 allows without quotes, as crictl's parser reads them.
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE: Final = frozenset("true True TRUE yes Yes YES on On ON".split())
_FALSE: Final = frozenset("false False FALSE no No NO off Off OFF".split())
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_INTEGER: Final = re.compile(r"-?[0-9]{1,40}")  # quick to convert, also beyond 64 bits
_ONLY_IN_JSON: Final = re.compile(r"\t|\\u[dD][89abAB]..\\u[dD][c-fC-F]..")


def parse(text: str, *, is_typed: bool = True) -> Any:
    """Return the data of the first document, JSON or YAML; None if it is empty.

    The last value of a repeated key counts. Keys have at most 1,024 characters as written, in JSON
    too.

    Args:
        is_typed: whether scalars without quotes become numbers and booleans; otherwise they remain
            text. Null is always None.

    Raises:
        ConfigError: the text is neither JSON nor YAML, has an alias, which could expand to any
            size, or is nested deeper than MAX_NESTING levels. The message names the line.
    """
    is_json = text.lstrip()[:1] in ("{", "[")
    source = _ONLY_IN_JSON.sub(_in_yaml, text) if is_json else text
    try:
        events = yaml.parse(source, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        first = next((event for event in events if isinstance(event, yaml.NodeEvent)), None)
        data = None if first is None else _value(first, events, 1, is_typed)
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                break
        return data
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, reason = mark.line + 1 if mark else 1, error.problem or "unreadable"
    except (yaml.YAMLError, UnicodeEncodeError) as error:  # a character not allowed in YAML
        before = source.encode(errors="replace")[: getattr(error, "position", 0)]
        line, reason = before.count(b"\n") + 1, str(error).partition("\n")[0]
    # The error in a truncated document is on its last line, not on the one after it.
    last_line = max(len(source.rstrip().splitlines()), 1)
    language = "JSON" if is_json else "YAML"
    raise ConfigError(f"line {min(line, last_line)}: it is not {language}: {escape(reason)}")


def _in_yaml(match: re.Match[str]) -> str:
    if match[0] == "\t":
        return " "
    character = json.loads(f'"{match[0]}"')
    return f"\\U{ord(character):08x}"


def _refusal(event: yaml.Event, reason: str) -> ConfigError:
    line = event.start_mark.line + 1 if event.start_mark else 1
    return ConfigError(f"line {line}: {reason}")


def _value(event: yaml.Event, events: Iterator[yaml.Event], depth: int, is_typed: bool) -> Any:
    """Return the value that an event begins, and consume the events up to its end."""
    if isinstance(event, yaml.ScalarEvent):
        return _scalar(event, is_typed)
    if not isinstance(event, yaml.CollectionStartEvent):
        raise _refusal(event, "aliases are not supported")
    if depth > MAX_NESTING:
        raise _refusal(event, "it is nested too deeply")
    is_mapping = isinstance(event, yaml.MappingStartEvent)
    if event.tag not in (None, "!", f"tag:yaml.org,2002:{'map' if is_mapping else 'seq'}"):
        raise _refusal(event, f'the tag "{escape(event.tag)}" is not supported')
    members, items = {}, []
    for inner in events:
        if isinstance(inner, yaml.CollectionEndEvent):
            break
        if not is_mapping:
            items.append(_value(inner, events, depth + 1, is_typed))
        elif not isinstance(inner, yaml.ScalarEvent):
            raise _refusal(inner, "a key is not a scalar")
        else:
            members[inner.value] = _value(next(events), events, depth + 1, is_typed)
    return members if is_mapping else items


def _scalar(event: yaml.ScalarEvent, is_typed: bool) -> Any:
    text: str = event.value
    if event.implicit[0]:
        return _plain(text) if is_typed or text in _NULLS else text
    if event.implicit[1] or event.tag in _STRING_TAGS:
        return text
    raise _refusal(event, f'the tag "{escape(event.tag or "")}" is not supported')


def _plain(text: str) -> str | int | float | bool | None:
    if text in _NULLS:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if text[0] not in "+-.0123456789":
        return text
    if text.lower().lstrip("+-") in (".inf", ".nan"):
        return math.nan if "n" == text[-1].lower() else math.inf
    try:
        return parse_int(text)
    except ValueError:
        pass
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
