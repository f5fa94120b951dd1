from __future__ import annotations

import pytest

from tests.captures import capture, load


def test_every_family_is_there() -> None:
    families = (
        "pods",
        "ps",
        "images",
        "pull",
        "version",
        "exec",
        "rm",
        "stats",
        "f",
        "l",
        "m",
        "x",
    )
    names = [recorded.name for family in families for recorded in load(family)]
    assert len(names) == len(set(names)) > 200


def test_a_recording_has_its_parts() -> None:
    pull = capture("pull-private-badcreds")
    assert pull.rc == 1
    assert pull.output == ""
    assert [call["rpc"] for call in pull.rpc] == ["ImageFsInfo", "PullImage"]
    assert pull.rpc[1]["request"]["auth"] == {"username": "u1", "password": "wrong"}
    assert pull.rpc[1]["code"] == "UNKNOWN"
    assert pull.rpc[1]["deadline_s"] is None


def test_help_pages_are_not_kept() -> None:
    page = capture("images-two-args")
    assert page.is_help
    assert page.rc == 0
    with pytest.raises(AssertionError, match="keeps no stdout"):
        _ = page.output


def test_a_prefix_ends_at_a_dash() -> None:
    assert {recorded.name.split("-")[0] for recorded in load("ps")} == {"ps"}
    assert [recorded.name for recorded in load("version")] == ["version"]
    with pytest.raises(AssertionError, match="no recording"):
        load("imag")
