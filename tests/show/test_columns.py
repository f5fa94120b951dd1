from __future__ import annotations

from typing import Any

import pytest

from pycrictl.base.errors import UsageError
from pycrictl.show.columns import ABSENT, Columns, SortKey

DOCUMENTS: list[dict[str, Any]] = [
    {"id": "b", "metadata": {"name": "pod-10"}, "createdAt": "9", "labels": {"k": "v", "l": "w"}},
    {"id": "a", "metadata": {"name": "pod-9"}, "createdAt": "10", "n": 1},
    {"id": "c", "createdAt": "100", "n": 1.5},
]


def test_columns() -> None:
    table = Columns("NAME:.metadata.name,ID:{.id},LABELS:.labels[*]").table(DOCUMENTS)
    assert table.header == ("NAME", "ID", "LABELS")
    assert table.rows == [("pod-10", "b", "v,w"), ("pod-9", "a", ABSENT), (ABSENT, "c", ABSENT)]


def test_commas_in_brackets_belong_to_the_path() -> None:
    table = Columns("A:.labels[?(@=='v,w')],B:.labels['k'],C:.id").table(DOCUMENTS)
    assert table.header == ("A", "B", "C")
    assert table.rows[0] == (ABSENT, "v", "b")


@pytest.mark.parametrize(
    "text", ["", ",", "NAME", "NAME:", ":.id", "A:.id,", "A:.id,,B:.id", "A:.x["]
)
def test_what_is_no_columns(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        Columns(text)
    assert raised.value.message.isprintable()


@pytest.mark.parametrize(
    ("path", "order"),
    [
        (".metadata.name", "cab"),  # nothing, pod-9, pod-10
        ("metadata.name", "cab"),
        (".createdAt", "bac"),
        (".id", "abc"),
        (".labels", "acb"),
    ],
)
def test_orders(path: str, order: str) -> None:
    ordered = SortKey(path).sorted(DOCUMENTS, DOCUMENTS)
    assert "".join(str(document["id"]) for document in ordered) == order


def test_a_field_that_nothing_has() -> None:
    key = SortKey(".nosuch")
    assert key.sorted([], []) == []
    with pytest.raises(UsageError, match=r'no listed object has the field "\.nosuch"'):
        key.sorted(DOCUMENTS, DOCUMENTS)
    known = SortKey(".n")  # in a watched list, the field may disappear
    assert known.sorted(["x"], [{"n": None}]) == ["x"]
    assert known.sorted(["y", "z"], [{}, {}]) == ["y", "z"]


def test_values_that_are_hard_to_compare() -> None:
    values = ["", "1" * 5000, "9" * 5000, True, {"a": 1}, ["x"], "x1y2", "x1y10", 0.5, "007", "٣"]
    documents = [{"v": value} for value in values]
    ordered = SortKey(".v").sorted(values, documents)
    assert sorted(map(repr, ordered)) == sorted(map(repr, values))
    assert ordered.index("x1y2") < ordered.index("x1y10")
    assert ordered.index("007") < ordered.index("1" * 5000) < ordered.index("9" * 5000)


def test_headings_stand_for_paths() -> None:
    documents = [{"size": "9", "n": "b"}, {"size": "10", "n": "a"}, {"n": "c"}]
    headings = {"size": ".size", "pod id": ".n"}

    def names(text: str) -> str:
        return "".join(
            document["n"] for document in SortKey(text, headings).sorted(documents, documents)
        )

    assert names("size") == names("SIZE") == names(".size") == "cba"
    assert names("-size") == names("-.size") == "abc"
    assert names("Pod ID") == "abc"
