"""What is mounted in a container stays mounted, whatever is copied there."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from tests.copy.trees import stages_in

from .copying import (
    Cp,
    Start,
)

MOUNTED = {"/etc/hosts", "/data/app.conf", "/volume"}


def mounts(cp: Cp) -> dict[str, str]:
    rows = [line.split() for line in (cp.root.parent / "mountinfo").read_text().splitlines()]
    return {row[4]: row[0] for row in rows if row[4] in MOUNTED}


def archive_of(path: Path) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.add(path, path.name)
    return data.getvalue()


@pytest.mark.parametrize("method", ["node", "rpc"])
def test_what_is_mounted_stays(
    start_container: Start, folder: Path, tmp_path: Path, method: str
) -> None:
    (folder / "volume").mkdir()
    for name in ("hosts", "app.conf"):
        (folder / name).write_text("mounted")
    cp = start_container(
        method,
        mounts=[
            (folder / "hosts", "/etc/hosts"),
            (folder / "app.conf", "/data/app.conf"),
            (folder / "volume", "/volume"),
        ],
    )
    before = mounts(cp)
    assert before.keys() == MOUNTED
    for name in ("tree/hosts", "tree/another", "conf/app.conf", "top/volume/new", "top/aaa"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("new")
    (tmp_path / "links").mkdir()
    (tmp_path / "links/hosts").symlink_to("nowhere")
    # The calls of the method rpc have no such option.
    keep = () if method == "rpc" else ("--no-clobber",)
    refused = [
        (f"{tmp_path}/tree/.", "C:/etc"),
        (tmp_path / "tree/hosts", "C:/etc/"),
        (tmp_path / "tree/hosts", "C:/etc/hosts"),
        (f"{tmp_path}/links/.", "C:/etc"),
        (tmp_path / "links/hosts", "C:/etc/hosts"),
        (tmp_path / "conf/app.conf", "C:/data"),
        (f"{tmp_path}/conf/.", "C:/data"),
    ]
    for words in refused:
        assert "is mounted there and cannot be replaced" in cp.refused(*words)
        assert mounts(cp) == before
    told = cp.refused("-", "C:/etc", stdin=archive_of(tmp_path / "tree/hosts"))
    assert '"/etc/hosts" is mounted there' in told
    told = cp.refused(f"{tmp_path}/top/.", "C:/")
    assert 'another file system is mounted at "/volume"' in told
    assert not (cp.root / "aaa").exists()
    assert not (cp.root / "etc/another").exists()
    if keep:
        cp.ok(*keep, f"{tmp_path}/tree/.", "C:/etc")
        assert (cp.root / "etc/another").read_text() == "new"
    cp.ok(f"{tmp_path}/top/volume/.", "C:/volume")
    assert mounts(cp) == before
    assert [(folder / name).read_text() for name in ("hosts", "app.conf")] == ["mounted"] * 2
    assert (folder / "volume/new").read_text() == "new"
    assert stages_in(cp.root) == []
