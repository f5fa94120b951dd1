from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.show.gotemplate import GoTemplate, TemplateError

DATA: dict[str, Any] = {
    "labels": {"b": "2", "a": "1"},
    "numbers": [1, 20, 3],
    "words": ["c", "a"],
    "mixed": [1, "a", True, None, {"k": "v"}, ["x"]],
    "empty": {"map": {}},
    "half": 1.5,
    "big": 2**63 - 1,
    "escapes": "a\x1b\t\x7f\x85",
}


def printed(arguments: str) -> str:
    return GoTemplate(f"{{{{printf {arguments}}}}}").render(DATA)


# The texts are what kubectl's templates print, but for `%s` and `%q` of numbers, and `%f` of whole
# ones.
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("`%5d|%-5d|%05d|%x` 42 42 -42 255", "   42|42   |-0042|ff"),
        (
            "`%6.2f|%-7.1f|%f|%08.2f|%d` 3.14159 2 1.5 -1.5 1.5",
            "  3.14|2.0    |1.500000|-0001.50|%!d(float64=1.5)",
        ),
        ("`%s %d %q` .half .big 65", '1.5 9223372036854775807 "65"'),
        ('`%s %q %x %5s|%-5q|` `a` `b"` `hi` `é` `a`', 'a "b\\"" 6869     é|"a"  |'),
        ("`%q` .escapes", '"a\\x1b\\t\\x7f\\u0085"'),
        (
            r'`%q` "\a\b\f\n\r\v\\\"\u200b\U0001F600"',
            '"\\a\\b\\f\\n\\r\\v\\\\\\"\\u200b\U0001f600"',
        ),
        ("`%v %v %6t %d` true nil false true", "true <nil>  false %!d(bool=true)"),
        ("`%s %d %q|%7v` nil nil nil nil", "%!s(<nil>) %!d(<nil>) %!q(<nil>)|  <nil>"),
        (
            "`%T %T %T %6T` .labels .numbers 1 nil",
            "map[string]interface {} []interface {} int  <nil>",
        ),
        # each part of maps and lists
        ("`%s %s` .numbers .labels", "[1 20 3] map[a:1 b:2]"),
        ("`%q` .labels", 'map["a":"1" "b":"2"]'),
        ("`%3d|%-3d` .numbers .numbers", "[  1  20   3]|[1   20  3  ]"),
        ("`%d %d` .words .empty.map", "[%!d(string=c) %!d(string=a)] map[]"),
        ("`%s` .mixed", "[1 a %!s(bool=true) <nil> map[k:v] [x]]"),
        ("`%v` .mixed", "[1 a true <nil> map[k:v] [x]]"),
        # what does not fit
        ("`%d` 1 2 `a` nil .words", "1%!(EXTRA int=2, string=a, <nil>, []interface {}=[c a])"),
        ("`%s %s %%` `a`", "a %!s(MISSING) %"),
    ],
)
def test_verbs_print_as_in_go(arguments: str, text: str) -> None:
    assert printed(arguments) == text


@pytest.mark.parametrize("form", ["%9999d", "%[2]s", "%*d", "%b", "%+d", "%#v", "%.2s", "%", "%y"])
def test_other_verbs_are_refused_by_name(form: str) -> None:
    with pytest.raises(TemplateError, match=r'printf: "%.* is not supported, only %s %v %q'):
        printed(f"`{form}` 1")


FORMS = st.lists(
    st.sampled_from(["%", *"-+# 0", "5", "12", ".", ".2", *"vTtbcdqxfspw", "é", "!"])
).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e30, 1e30) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def outcome(form: str, value: Any) -> str:
    try:
        return GoTemplate("{{printf .form .value .value}}").render({"form": form, "value": value})
    except TemplateError as exc:
        return exc.message


@given(FORMS, VALUES)
def test_every_form_prints_a_value_or_is_refused(form: str, value: Any) -> None:
    text = outcome(form, value)
    if text.startswith("template: :1:"):
        assert re.search(r"printf: .*(is not supported|too large)", text)
    text.encode()  # no halves of surrogate pairs
