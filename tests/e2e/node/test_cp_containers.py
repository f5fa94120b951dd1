"""``pycrictl cp`` with unusual containers: another user, another tar, hardly any programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from .copying import METHODS, Start
from .images import busybox, busybox_files
from .lab import MIB, Lab

BUSYBOX = Path("/bin/busybox")


def test_a_user_who_is_not_root(start_container: Start, folder: Path) -> None:
    cp = start_container("exec", user=1000)
    (folder / "f").write_text("1")
    assert "Permission denied" in cp.refused(folder / "f", "C:/root/f")
    cp.ok(folder / "f", "C:/tmp/f")
    status = (cp.root / "tmp/f").stat()
    assert (status.st_uid, status.st_size) == (1000, 1)


@pytest.mark.parametrize("method", METHODS)
def test_a_distroless_container(
    shared_lab: Lab, start_container: Start, folder: Path, method: str
) -> None:
    """Whole trees are copied there and back in ``test_container_cp``."""
    image = shared_lab.layout.image("static:1", [shared_lab.layout.layer([busybox("busybox-app")])])
    cp = start_container(method, image, command=["/busybox-app", "sleep", "1000000"])
    for source, target, made in (
        (BUSYBOX, "C:/new", cp.root / "new"),
        ("C:/busybox-app", folder / "new", folder / "new"),
    ):
        if method == "exec":
            line = cp.refused(source, target)
            missing = "stat" if target == "C:/new" else "tar"
            told = f"pycrictl: there is no {missing} in the container"
            assert (line, made.exists()) == (told, False)
        else:
            cp.ok(source, target)
            assert made.read_bytes() == BUSYBOX.read_bytes()


def test_a_container_with_tar_only(shared_lab: Lab, start_container: Start, folder: Path) -> None:
    kept = ("bin/busybox", "bin/tar", "bin/sleep", "tmp")
    files = [file for file in busybox_files() if file.path.strip("/") in kept]
    image = shared_lab.layout.image("tar:1", [shared_lab.layout.layer(files)])
    cp = start_container("exec", image)
    cp.ok("C:/bin/busybox", folder)
    assert (folder / "busybox").stat().st_size > MIB
    line = cp.refused(folder / "busybox", "C:/new")
    assert line == "pycrictl: there is no stat in the container"
