"""Small parts of the agent's copies: log lines, refusals, bodies, and the work of the node."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pytest

from pycrictl.agent.copies.engine import Engine
from pycrictl.agent.copies.forwarding import OWNER, owner_header
from pycrictl.agent.copies.http_errors import refused
from pycrictl.agent.copies.session import (
    CopyOwner,
    CopyPhase,
    CopySpec,
    Direction,
    End,
    Place,
    Session,
    fields_of,
)
from pycrictl.cri.calls.client import CriClient
from pycrictl.errors import ConnectError, CopyError, FailedPrecondition, NotFound, PycrictlError
from pycrictl.servicelog import pairs
from tests.agent.standing import Cluster
from tests.copy.trees import UNWATCHED, Archive, needs_root
from tests.proxy.conftest import folder, start
from tests.proxy.copier import ARCHIVE, Pretended
from tests.proxy.program import Program
from tests.waiting import wait_until

ASKED = Place("shop", "web", "uid1", "main")


def line(user: str, path: bytes, end: End, message: str = "") -> str:
    spec = CopySpec(Direction.FROM, path)
    session = Session("n", CopyOwner(user), ASKED, spec, CopyPhase.FAILED, 9, 0, 4, message)
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


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (CopyError("no", hint="try again"), 422, "no (try again)"),
        (ConnectError("cannot reach the runtime", hint="name its socket with -r"), 503, "cannot "),
    ],
)
def test_no_advice_that_only_the_node_can_take(
    error: PycrictlError, code: int, message: str
) -> None:
    found = refused(error)
    assert found.code == code
    assert found.message.startswith(message)
    assert "-r" not in found.message


COPIES = "/node/v1alpha1/namespaces/default/pods/web/containercopies"


def test_the_body_is_read_once_it_is_known_who_asks(cluster: Cluster, node: Path) -> None:
    headers = {OWNER: owner_header(CopyOwner("jane")), "Authorization": f"Bearer {cluster.token}"}
    for body, why in ((b"[" * 60_000, "the object is not JSON"), (b"[" * 70_000, "too large")):
        found = cluster.ask(COPIES, method="POST", body=body, headers=headers)
        assert why in found.document["message"]


__all__ = ["folder", "start"]


@needs_root
def test_by_the_proxy_and_beside_it(
    container: Pretended, start: Callable[..., Program], tmp_path: Path
) -> None:
    """What the calls cannot ask for is done through /proc."""
    proxy = start()
    engine = Engine(lambda: CriClient(str(proxy.socket_path), timeout_s=10))
    place = engine.find(ASKED)
    engine.check(place)
    to = CopySpec(Direction.TO, b"/to/f", size_bytes=len(ARCHIVE), crc32=crc32(ARCHIVE))
    for spec in (to, replace(to, path=b"/to", overwrite=False)):
        archive = Archive([b"", ARCHIVE])  # from a client that is away for a moment
        archive.kind = None
        engine.place(place, spec, archive, UNWATCHED)
        (container.root / "to/f").write_text("old")
    found = bytearray()
    engine.pack(place, CopySpec(Direction.FROM, b"/to/f"), found.extend, UNWATCHED)
    assert b"old" in found

    def copies() -> list[tuple[str, str]]:
        return re.findall(r" copy direction=(\w+) .*end=(\w+)", proxy.log())

    wait_until(lambda: copies() == [("to", "done"), ("from", "done")])
    container.pods = {}
    with pytest.raises(FailedPrecondition, match="was stopped or replaced"):
        engine.check(place)
    with pytest.raises(NotFound, match='container "main" of pod "shop/web" has not been made'):
        engine.find(ASKED)
