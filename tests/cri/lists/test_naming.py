"""The rule by which a word stands for something, and the names that are like a word."""

from __future__ import annotations

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.cri.lists.lookup import match, nearest, pods_named, preferred

ABC, ABD, DB = (cri_pb2.PodSandbox(id=text) for text in ("abc", "abd", "db" + "0" * 62))
THINGS = [ABC, ABD, DB]


@pytest.mark.parametrize(
    ("text", "named", "found"),
    [
        ("abc", [ABD], [ABC]),  # an exact ID
        ("abd", [], [ABD]),
        ("db", [], [DB]),  # the only one that begins so
        ("db", [DB], [DB]),
        ("db", [ABC], [DB, ABC]),  # and a name: nobody knows what is meant
        ("db" + "0" * 10, [ABC], [DB]),  # no name is so long and so much of an ID
        ("ab", [DB], [DB]),  # a name, of several that begin so
        ("ab", [], [ABC, ABD]),
        ("web", [ABC, ABD], [ABC, ABD]),
        ("web", [], []),
    ],
)
def test_the_rule(
    text: str, named: list[cri_pb2.PodSandbox], found: list[cri_pb2.PodSandbox]
) -> None:
    assert match(THINGS, text, lambda: named) == found


def test_what_is_alive_is_preferred_among_equal_names_only() -> None:
    def is_abd(thing: cri_pb2.PodSandbox) -> bool:
        return thing.id == "abd"

    assert preferred([ABC, ABD], lambda _: "same", is_abd) == [ABD]
    assert preferred([ABC, ABD], lambda each: each.id, is_abd) == [ABC, ABD]
    assert preferred([ABC, ABD], lambda _: "same", lambda _: False) == [ABC, ABD]


def test_the_newest_sandbox_of_a_pod() -> None:
    pods = [
        cri_pb2.PodSandbox(
            id=text,
            created_at=number,
            metadata=cri_pb2.PodSandboxMetadata(name="web", namespace="prod", uid="u"),
        )
        for number, text in enumerate(("old", "new"))
    ]
    assert [pod.id for pod in pods_named(pods, "web")] == ["new"]
    assert [pod.id for pod in pods_named(pods, "prod/web")] == ["new"]
    assert pods_named(pods, "test/web") == []


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("coredsn", '"coredns"'),
        ("prod/wbe", '"prod/web"'),
        ("wbe/main", '"web/main"'),
        ("prod/web/mian", '"prod/web/main"'),
        ("zzzz", ""),
        ("", ""),
    ],
)
def test_names_like_a_word_have_its_form(text: str, near: str) -> None:
    assert nearest(text, ["prod/web", "prod/web/main", "kube-system/dns/coredns"]) == near
