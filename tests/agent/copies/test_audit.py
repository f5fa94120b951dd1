"""What the log says of a copy."""

from __future__ import annotations

import json
import re

from pycrictl.agent.copies.session import (
    CopyPhase,
    CopySpec,
    Direction,
    End,
    Owner,
    Place,
    Session,
    fields_of,
)
from pycrictl.servicelog import pairs


def line(user: str, path: bytes, end: End, message: str = "") -> str:
    place = Place("shop", "web", "uid1", "main")
    session = Session(
        "n", Owner(user), place, CopySpec(Direction.FROM, path), CopyPhase.FAILED, 9, 0, 4, message
    )
    return pairs("copy", fields_of(session, end))


def test_what_users_choose_is_escaped() -> None:
    evil = 'x\nlevel=INFO copy user=root end=done \x1b[2J"'
    found = line(evil, b"/" + evil.encode() + b"\xff", End.FAILED, evil)
    assert found.isascii()
    assert found.isprintable()
    assert re.sub('"(?:[^"\\\\]|\\\\.)*"', "S", found) == (
        "copy user=S pod=shop/web container=main direction=from path=S size_bytes=9"
        " moved_bytes=4 end=failed error=S"
    )
    user, path, error = re.findall('"(?:[^"\\\\]|\\\\.)*"', found)
    assert (json.loads(user), json.loads(error)) == (evil, evil)
    assert json.loads(path) == f"/{evil}\udcff"


def test_the_end_of_a_long_path_is_not_hidden() -> None:
    path = b"/." * 2000 + b"/etc/shadow"
    assert f"path={path.decode()} " in line("jane", path, End.DONE)
    assert line("jane", path, End.DONE, "it was put there").endswith("end=done")
