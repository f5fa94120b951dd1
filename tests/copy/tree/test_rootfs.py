"""Finding and changing entries through directories that are held open."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pycrictl.base.environ import raise_file_limit
from pycrictl.base.errors import CopyError, Unimplemented
from pycrictl.copy.tree import rootfs as resolving
from pycrictl.copy.tree.rootfs import (
    RENAME_NOREPLACE,
    Directory,
    KernelFileSystem,
    held,
    reopen_regular,
    resolve,
)
from tests.copy.racer import flipping


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    """Yield a root with links of all kinds, next to a file that an escape would reach."""
    top = tmp_path / "root"
    (top / "dir/sub").mkdir(parents=True)
    (top / "outside").write_text("inside")
    (tmp_path / "outside").write_text("outside")
    (top / "file").write_text("file")
    (top / "dir/file").write_text("dir/file")
    for name, target in {
        "to-dir": "dir",
        "abs": "/dir/file",
        "up": "../../../../outside",
        "dir/sub/back": "../../to-dir/sub/../file",
        "dangling": "nowhere",
        "loop": "loop",
    }.items():
        (top / name).symlink_to(target)
    fd = os.open(top, os.O_PATH)
    yield fd
    os.close(fd)


@pytest.mark.parametrize(
    ("path", "follow", "target"),
    [
        ("file", False, "file"),
        ("//dir//./file", True, "dir/file"),
        ("../../../outside", True, "inside"),
        ("to-dir/file", False, "dir/file"),
        ("abs", True, "dir/file"),
        ("up", True, "inside"),
        ("dir/sub/back", True, "dir/file"),
        ("dangling", True, errno.ENOENT),
        ("file/..", True, errno.ENOTDIR),
        ("loop", True, errno.ELOOP),
        ("abs", False, stat.S_IFLNK),
        ("to-dir/", False, stat.S_IFDIR),
        ("..", True, stat.S_IFDIR),
    ],
)
def test_resolve(root: int, path: str, follow: bool, target: str | int) -> None:
    if target in errno.errorcode:
        with pytest.raises(OSError, check=lambda exc: exc.errno == target):
            resolve(root, path.encode(), follow=follow)
        return
    fd = resolve(root, path.encode(), follow=follow)
    if isinstance(target, int):
        assert stat.S_IFMT(os.fstat(fd).st_mode) == target
    else:
        assert Path(f"/proc/self/fd/{fd}").read_text() == target
    os.close(fd)


def test_links_to_open_files_are_refused() -> None:
    fd, refusals = os.open("/proc", os.O_PATH), (errno.ELOOP, errno.EXDEV, errno.EACCES)
    for path in (b"self/root/etc", b"self/exe", b"self/cwd/x", b"self/fd/0", b"1/root/etc"):
        with pytest.raises(OSError, check=lambda exc: exc.errno in refusals):
            resolve(fd, path, follow=True)
    os.close(fd)


def test_an_old_kernel_needs_other_methods(root: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolving, "_OPENAT2", 99_999)
    with pytest.raises(Unimplemented, match="openat2"):
        resolve(root, b"file")


def test_no_escape_while_a_component_is_exchanged(tmp_path: Path) -> None:
    (tmp_path / "root/dir").mkdir(parents=True)
    (tmp_path / "root/dir/data").write_text("inside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/data").write_text("outside")
    (tmp_path / "root/evil").symlink_to(tmp_path / "outside")
    root = os.open(tmp_path / "root", os.O_PATH)
    seen = {"inside": 0, "outside": 0, "error": 0}
    with flipping(tmp_path / "root", "dir", "evil"):
        enough_at = time.monotonic() + 0.5
        while (now := time.monotonic()) < enough_at or (
            min(seen["inside"], seen["error"]) <= 100 and now < enough_at + 60
        ):
            try:
                fd = resolve(root, b"dir/data", follow=True)
            except OSError:
                seen["error"] += 1
                continue
            seen[Path(f"/proc/self/fd/{fd}").read_text()] += 1
            os.close(fd)
    os.close(root)
    assert seen["outside"] == 0
    assert min(seen["inside"], seen["error"]) > 100


# File systems


@pytest.mark.parametrize(
    "path", ["/proc", "/proc/self/mem", "/sys", "/proc/sys/kernel/core_pattern"]
)
def test_file_systems_of_the_kernel(path: str) -> None:
    fd = os.open(path, os.O_PATH)
    with pytest.raises(KernelFileSystem, match="fs, which is never copied") as info:
        Directory(os.dup(fd), b"x") if Path(path).is_dir() else reopen_regular(
            fd, os.fstat(fd), device=None, shown=b"x"
        )
    assert info.value.hint == "exec with cat reads such a file, exec -i with tee writes one"
    os.close(fd)


# Directories


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    with Directory(os.open(tmp_path, os.O_PATH), b"shown") as directory:
        yield directory


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"/", b"../x"])
def test_only_single_names(directory: Directory, name: bytes) -> None:
    calls: list[Callable[[], object]] = [
        lambda: directory.lstat(name),
        lambda: directory.enter(name),
        lambda: directory.pin(name),
        lambda: directory.read_link(name),
        lambda: directory.make(name),
        lambda: directory.create(name),
        lambda: directory.symlink(b"x", name),
        lambda: directory.link(directory, name, b"x"),
        lambda: directory.link(directory, b"x", name),
        lambda: directory.move(name, directory, b"x"),
        lambda: directory.move(b"x", directory, name, flags=RENAME_NOREPLACE),
        lambda: directory.remove(name),
    ]
    for call in calls:
        with pytest.raises(OSError, check=lambda exc: exc.errno == errno.EINVAL):
            call()


def test_links_are_not_followed_and_only_files_opened(directory: Directory, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "f").write_text("keep me")
    (tmp_path / "to-d").symlink_to("d")
    (tmp_path / "to-f").symlink_to("f")
    os.mkfifo(tmp_path / "pipe")

    def opened(name: bytes) -> int:
        """Open a file as the walk through a tree does."""
        with held(directory.pin(name)) as pinned:
            return reopen_regular(pinned, os.fstat(pinned), device=directory.device, shown=name)

    with pytest.raises(NotADirectoryError):
        directory.enter(b"to-d")
    for name in (b"to-f", b"pipe", b"d"):
        with pytest.raises(CopyError, match="not a regular file"):
            opened(name)
    with open(opened(b"f"), "rb") as file:
        assert file.read() == b"keep me"
    with pytest.raises(FileExistsError):
        directory.create(b"to-f")
    with pytest.raises(FileExistsError):
        directory.make(b"to-d")
    directory.link(directory, b"to-f", b"second")
    assert (tmp_path / "second").is_symlink()
    directory.remove(b"to-d")
    directory.remove(b"to-f")
    assert (tmp_path / "d").is_dir()
    assert (tmp_path / "f").read_text() == "keep me"


def test_what_is_nested_too_deep_is_not_removed(directory: Directory, tmp_path: Path) -> None:
    raise_file_limit()
    fd = os.open(tmp_path, os.O_PATH)
    for _ in range(700):
        os.mkdir("d", dir_fd=fd)
        fd, outer = os.open("d", os.O_PATH, dir_fd=fd), fd
        os.close(outer)
    os.close(fd)
    with pytest.raises(OSError, match="too long"):
        directory.remove(b"d")
    subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)
