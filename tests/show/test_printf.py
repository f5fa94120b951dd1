from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.show.gotemplate import Template, TemplateError

DATA: dict[str, Any] = {
    "state": "RUNNING",
    "labels": {"b": "2", "a": "1"},
    "numbers": [1, 20, 3],
    "words": ["c", "a"],
    "mixed": [1, "a", True, None, {"k": "v"}, ["x"]],
    "empty": {"list": [], "map": {}},
    "half": 1.5,
    "big": 2**63 - 1,
    "escapes": "a\x1b\t\x7f\x85",
}


def printed(arguments: str) -> str:
    return Template(f"{{{{printf {arguments}}}}}").render(DATA)


# The texts are what kubectl's templates print, but for `%s` and `%q` of numbers, and `%f` of whole
# ones.
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        # numbers
        ("`%5d|%-5d|%05d|%+d|% d` 42 42 -42 42 42", "   42|42   |-0042|+42| 42"),
        ("`%x %X %#x %o %#o %b %c` 255 255 255 8 8 5 65", "ff FF 0xff 10 010 101 A"),
        ("`%O %#X %#b %#o %#O` 8 255 5 0 0", "0o10 0XFF 0b101 0 0o0"),
        ("`%06x|%#06x|%-#6x|%-05d|%x` 10 10 10 5 -255", "00000a|0x00000a|0xa   |5    |-ff"),
        ("`%.3d|%06.3d|%.0d|%3.0d|%+.2d` 5 5 0 0 5", "005|   005||   |+05"),
        (
            "`%U|%#U|%08U|%.6U|%U|%#U` 65 65 65 65 -1 7",
            "U+0041|U+0041 'A'|  U+0041|U+000041|U+FFFFFFFFFFFFFFFF|U+0007",
        ),
        ("`%c|%5c|%c|%c` 233 65 55296 -1", "é|    A|\ufffd|\ufffd"),
        ("`%f %.1f %e %g %G` 1.5 1.25 1500.0 1e21 1e21", "1.500000 1.2 1.500000e+03 1e+21 1E+21"),
        (
            "`%g %g %g %.3g %g` 0.5 1000000.5 0.0001 123456.5 1e-7",
            "0.5 1.0000005e+06 0.0001 1.23e+05 1e-07",
        ),
        ("`%6.2f|%-7.1f|%d` 3.14159 2 1.5", "  3.14|2.0    |%!d(float64=1.5)"),
        (
            "`%+f|%08.2f|%+08.2f|%F|%#.0f` 1.5 -1.5 1.5 1.5 2.0",
            "+1.500000|-0001.50|+0001.50|1.500000|2.",
        ),
        ("`%+v|% v|%05v|%.2v` 5 5 5 1.234", "5| 5|00005|1.2"),
        ("`%s %d %q` .half .big 65", '1.5 9223372036854775807 "65"'),
        # strings
        ('`%s %q %x %.2s %5s|` `a` `b"` `hi` `abc` `é`', 'a "b\\"" 6869 ab     é|'),
        ("`%06s|%06q|%-5q|%.1q` `ab` `ab` `a` `éa`", '0000ab|00"ab"|"a"  |"é"'),
        ("`%q` .escapes", '"a\\x1b\\t\\x7f\\u0085"'),
        (
            r'`%q` "\a\b\f\n\r\v\\\"\u200b\U0001F600"',
            '"\\a\\b\\f\\n\\r\\v\\\\\\"\\u200b\U0001f600"',
        ),
        (
            '`%#q %#q %+q %#+q` `a` "`" "é\\U0001F600" `é`',
            '`a` "`" "\\u00e9\\U0001f600" `é`',
        ),
        (
            "`% x|%#x|% #x|%#X|%.2x|%5x|%x|% x` `hi` `hi` `hi` `hi` `abc` `a` `` ``",
            "68 69|0x6869|0x68 0x69|0X6869|6162|   61||",
        ),
        # others
        ("`%v %v %t %d` true nil false true", "true <nil> false %!d(bool=true)"),
        ("`%6t|%06t|%s` true true true", "  true|00true|%!s(bool=true)"),
        ("`%s %d %q|%7v` nil nil nil nil", "%!s(<nil>) %!d(<nil>) %!q(<nil>)|  <nil>"),
        ("`%T %T %T %T %T` 1 1.5 `a` true nil", "int float64 string bool <nil>"),
        ("`%T %T %6T` .labels .numbers nil", "map[string]interface {} []interface {}  <nil>"),
        ("`%5.3T|` `a`", "  str|"),
        # each part of maps and lists
        ("`%s %s` .numbers .labels", "[1 20 3] map[a:1 b:2]"),
        ("`%q %#q %x` .words .words .words", '["c" "a"] [`c` `a`] [63 61]'),
        ("`%q` .labels", 'map["a":"1" "b":"2"]'),
        (
            "`%3d|%-3d|%03d` .numbers .numbers .numbers",
            "[  1  20   3]|[1   20  3  ]|[001 020 003]",
        ),
        ("`%3v` .labels", "map[  a:  1   b:  2]"),
        ("`%d %d` .words .empty.map", "[%!d(string=c) %!d(string=a)] map[]"),
        ("`%s` .mixed", "[1 a %!s(bool=true) <nil> map[k:v] [x]]"),
        ("`%v %+v` .mixed .words", "[1 a true <nil> map[k:v] [x]] [c a]"),
        ("`%#v` .labels", 'map[string]interface {}{"a":"1", "b":"2"}'),
        (
            "`%#v` .mixed",
            '[]interface {}{1, "a", true, interface {}(nil), map[string]interface {}{"k":"v"}, '
            '[]interface {}{"x"}}',
        ),
        ("`%#v %#v` .empty.list .empty.map", "[]interface {}{} map[string]interface {}{}"),
        # what does not fit
        ("`%% %d %` 1", "% 1 %!(NOVERB)"),
        ("`%d` 1 2 `a` nil .words", "1%!(EXTRA int=2, string=a, <nil>, []interface {}=[c a])"),
        ("`%y %y` 1 .words", "%!y(int=1) [%!y(string=c) %!y(string=a)]"),
        ("`%5d|%.2d|%+t` `hi` `hello` 5", "%!d(string=   hi)|%!d(string=he)|%!t(int=+5)"),
        ("`%s %s` `a`", "a %!s(MISSING)"),
    ],
)
def test_what_verbs_print(arguments: str, text: str) -> None:
    assert printed(arguments) == text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("`%9999999d` 1", "width 9999999 is out of range"),
        ("`%.9999999f` 1", "width 9999999 is out of range"),
        ("`%[2]s %[1]s` `a` `b`", '"%[2]s" is not supported: arguments are taken in order'),
        ("`%s %5[1]d`", '"%5[1]d" is not supported'),
        ("`%*d` 5 3", '"%*d" is not supported'),
        ("`%-.*f` 2 1.5", '"%-.*f" is not supported'),
        ("`%[`", '"%[" is not supported'),
        ("`%x` 1.5", '"%x" of a fraction is not supported'),
        ("`%b` 1.5", '"%b" of a fraction is not supported'),
        ("`%#g` 1.5", '"%#g" of a fraction is not supported'),
        ("`%p` .words", '"%p" of a list is not supported'),
        ("`%p` .labels", '"%p" of a map is not supported'),
    ],
)
def test_what_is_refused_by_name(arguments: str, message: str) -> None:
    with pytest.raises(TemplateError, match=re.escape(f"printf: {message}")):
        printed(arguments)


FORMS = st.lists(
    st.sampled_from(["%", *"-+# 0", "5", "12", ".", ".2", *"vTtbcdoOqxXUeEfFgGspw", "é", "!"])
).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e30, 1e30) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def outcome(form: str, value: Any) -> str:
    """What the form makes of the value, or why it is refused."""
    try:
        return Template("{{printf .form .value .value}}").render({"form": form, "value": value})
    except TemplateError as exc:
        return exc.message


@given(FORMS, VALUES)
def test_every_form_prints_a_value_or_is_refused(form: str, value: Any) -> None:
    text = outcome(form, value)
    if text.startswith("template: :1:"):
        assert re.search(r"printf: .*(is not supported|out of range|too large)", text)
    text.encode()  # no halves of surrogate pairs
