"""The files of an archive, whatever form it has."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
from pathlib import Path

import pytest

from pycrictl.base.errors import PycrictlError
from pycrictl.pulls.archives.archive import of_tar, opened

from .archives import LAYER, layout, tar

FILES = {**layout(), "big": bytes(range(256)) * 10_000}


def contents(path: Path) -> dict[str, bytes]:
    with opened(str(path)) as members:
        return {member.name: b"".join(member.pieces) for member in members}


@pytest.mark.parametrize("compress", [bytes, gzip.compress, lzma.compress])
def test_a_file(tmp_path: Path, compress: type[bytes]) -> None:
    path = tmp_path / "image.tar.x"
    path.write_bytes(compress(tar(FILES)))
    assert contents(path) == FILES


def test_a_folder(tmp_path: Path) -> None:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    assert contents(tmp_path) == layout()


def test_a_folder_that_is_no_layout(tmp_path: Path) -> None:
    assert contents(tmp_path) == {}


def _entry(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, link
    return entry


def test_a_link_within_the_archive_is_passed_over() -> None:
    data = tar({"a": LAYER, "": _entry("b/layer.tar", tarfile.SYMTYPE, "../a")})
    assert [member.name for member in of_tar(io.BytesIO(data))] == ["a"]


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        (_entry("../x", tarfile.REGTYPE), "points outside the archive"),
        (_entry("/x", tarfile.REGTYPE), "points outside the archive"),
        (_entry("a/../../x", tarfile.DIRTYPE), "points outside the archive"),
        (_entry("x", tarfile.SYMTYPE, "/etc/passwd"), "points outside the archive"),
        (_entry("x", tarfile.SYMTYPE, "../x"), "points outside the archive"),
        (_entry("x", tarfile.LNKTYPE, "index.json"), "is a hard link"),
        (_entry("x", tarfile.FIFOTYPE), "is a named pipe"),
    ],
)
def test_what_no_image_archive_has(tmp_path: Path, entry: tarfile.TarInfo, error: str) -> None:
    data = tar({"index.json": b"{}", "": entry})
    (tmp_path / "image.tar").write_bytes(data)
    with pytest.raises(PycrictlError, match=error):
        contents(tmp_path / "image.tar")


def test_an_archive_that_ends_too_early(tmp_path: Path) -> None:
    path = tmp_path / "image.tar"
    path.write_bytes(tar(FILES)[:-20_000])
    with pytest.raises(PycrictlError, match="ends too early"):
        contents(path)
