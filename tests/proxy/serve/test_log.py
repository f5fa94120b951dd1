from __future__ import annotations

from pycrictl.proxy.serve.log import pairs


def test_plain_words_stay_plain() -> None:
    fields = {"image": "a.b/c:1", "pod": "ns/name", "n": 3, "s": 0.5}
    assert pairs("pull", fields) == "pull image=a.b/c:1 pod=ns/name n=3 s=0.5"


def test_nothing_from_outside_begins_a_field_or_line() -> None:
    assert pairs("pull", {"image": "x outcome=OK"}) == 'pull image="x outcome=OK"'
    assert pairs("pull", {"image": "x\nlevel=INFO pull"}) == r'pull image="x\nlevel=INFO pull"'
    assert pairs("pull", {"image": "\x1b[2J", "quote": 'a"b'}) == (
        r'pull image="\u001b[2J" quote="a\"b"'
    )


def test_empty_fields_are_left_out() -> None:
    assert pairs("pull", {"error": "", "n": 0}) == "pull n=0"


def test_long_values_are_cut() -> None:
    assert len(pairs("pull", {"error": "x" * 10_000})) < 600
