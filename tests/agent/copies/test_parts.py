"""Small parts of the agent's copies: log lines, refusals, bodies, space."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from pycrictl.agent.copies.admission import RESERVE_BYTES, Admission, check_folder
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
from pycrictl.copy.rules.quotas import Quotas
from pycrictl.errors import ConfigError, ConnectError, CopyError, Exhausted, PycrictlError
from pycrictl.servicelog import pairs
from tests.agent.standing import Cluster


def line(user: str, path: bytes, end: End, message: str = "") -> str:
    place = Place("shop", "web", "uid1", "main")
    session = Session(
        "n",
        CopyOwner(user),
        place,
        CopySpec(Direction.FROM, path),
        CopyPhase.FAILED,
        9,
        0,
        4,
        message,
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


MIB = 1 << 20


def session(name: str, size_bytes: int = 0) -> Session:
    place, spec = Place("shop", "web", "uid1", "main"), CopySpec(Direction.TO, b"/to")
    return Session(name, CopyOwner(name), place, spec, CopyPhase.TRANSFERRING, size_bytes)


def test_a_part_of_the_disk_stays_free_without_a_limit() -> None:
    free_bytes = RESERVE_BYTES + 10 * MIB

    async def expire(_: Session, why: str) -> None:
        pytest.fail(why)

    async def run() -> None:
        nonlocal free_bytes
        admission = Admission(Quotas(), 0, lambda: free_bytes, lambda: 0.0, expire)
        jane, joe = session("jane", 10 * MIB), session("joe")
        await admission.take(jane)
        await admission.take(joe)
        admission.hold_now(jane, 6 * MIB)
        free_bytes -= 6 * MIB
        await admission.take(session("mary", 10 * MIB))
        full = pytest.raises(
            Exhausted, match="not enough space for the copy on the node's disk; try"
        )
        with full:
            await admission.take(session("jim", 11 * MIB))
        with full:
            await admission.hold(joe, 5 * MIB)
        admission.hold_now(joe, 4 * MIB)
        admission.hold_now(joe, 3 * MIB)  # less is always possible

    asyncio.run(run())


def test_a_folder_with_other_files_is_left_as_it_is(tmp_path: Path) -> None:
    """Somebody has typed /etc."""
    (tmp_path / "hosts").write_text("content")
    tmp_path.chmod(0o755)
    check_folder(str(tmp_path))
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in tmp_path.iterdir()] == ["hosts"]


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file/below", Path("/proc/sys")):
        with pytest.raises(ConfigError, match="cannot keep copies in"):
            check_folder(str(path))
