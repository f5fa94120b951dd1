"""``pycrictl cp`` as users meet it, with containers of the real containerd, by every method."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.wire.tar_writer import END_OF_ARCHIVE
from tests.proxy.program import Program as Proxy

from .forked import Ended, Program
from .images import File, Image, busybox_files
from .kubelet import RUNTIME
from .lab import MIB
from .test_copy_node import listing, make_tree, stages_in

if TYPE_CHECKING:
    from .lab import Lab

METHODS = ("rpc", "node", "exec")
BY_STREAM = tuple(method for method in METHODS if method != "node")
"""Methods whose work is not seen by the tests of the copy on the node alone."""

WAIT_S = 20
PYCRICTL = (sys.executable, "-m", "pycrictl")


@dataclass
class Cp:
    """A container, and runs of the program that copy from and to it.

    Attributes:
        program: runs it without the cost of its start.
        endpoint: where the program finds the runtime, or a proxy in front of it.
        id: the container's.
        method: how it copies.
        root: the container's root directory, for the test to look at and to prepare.
    """

    program: Program
    endpoint: str
    id: str
    method: str
    root: Path

    @property
    def keep(self) -> tuple[str, ...]:
        """The option to keep everything on the way into the container, which rpc has not."""
        return () if self.method == "rpc" else ("-a",)

    def words(self, *words: str | Path) -> list[str]:
        """The command line of a copy; ``C`` at the beginning of a word is the container."""
        named = [re.sub("^C:", f"{self.id}:", str(word)) for word in words]
        return ["-t", "30s", "-r", self.endpoint, "cp", "--method", self.method, *named]

    def start(self, *words: str | Path, **settings: Any) -> subprocess.Popen[bytes]:
        """Start a copy."""
        return subprocess.Popen(
            [*PYCRICTL, *self.words(*words)],
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings},
        )

    def __call__(self, *words: str | Path, stdin: bytes = b"") -> Ended:
        """Copy; how that ended."""
        return self.program.run(*self.words(*words), stdin=stdin)

    def ok(self, *words: str | Path, stdin: bytes = b"") -> str:
        """Copy, which must succeed; what was told."""
        status, _, stderr = self(*words, stdin=stdin)
        assert status == 0, stderr
        return stderr

    def refused(self, *words: str | Path, stdin: bytes = b"") -> str:
        """Copy, which must fail with one line; that line."""
        status, _, stderr = self(*words, stdin=stdin)
        assert status == 1, stderr
        told = [line for line in stderr.splitlines() if not line.startswith("hint: ")]
        assert len(told) == 1, stderr
        return told[0]


Start = Callable[..., Cp]


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    with Program() as program:
        yield program


@pytest.fixture(scope="module")
def proxy(shared_lab: Lab) -> Iterator[Proxy]:
    """A proxy in front of the node."""
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp", prefix="pct-") as folder,
        Proxy(Path(folder), shared_lab.node.endpoint) as proxy,
    ):
        yield proxy


@pytest.fixture(scope="module")
def start_container(
    shared_lab: Lab, program: Program, request: pytest.FixtureRequest
) -> Iterator[Start]:
    """Starts a container of an image, by default busybox, and tells how to copy by a method."""
    kubelet = shared_lab.node.kubelet

    def start(
        method: str,
        image: Image | None = None,
        *,
        pod_name: str = "copy",
        command: Sequence[str] = ("sleep", "1000000"),
        mounts: Sequence[tuple[Path, str]] = (),
        read_only: bool = False,
        user: int = 0,
    ) -> Cp:
        reference = shared_lab.push(image or shared_lab.busybox)
        kubelet.pull(reference)
        pod = kubelet.run_pod(pod_name)
        config = cri_pb2.ContainerConfig(
            metadata=cri_pb2.ContainerMetadata(name="main"),
            image=cri_pb2.ImageSpec(image=reference),
            command=command,
            mounts=[
                cri_pb2.Mount(host_path=str(host), container_path=inside) for host, inside in mounts
            ],
            linux=cri_pb2.LinuxContainerConfig(
                security_context=cri_pb2.LinuxContainerSecurityContext(
                    namespace_options=pod.config.linux.security_context.namespace_options,
                    readonly_rootfs=read_only,
                    run_as_user=cri_pb2.Int64Value(value=user),
                )
            ),
        )
        create = cri_pb2.CreateContainerRequest(
            pod_sandbox_id=pod.id, config=config, sandbox_config=pod.config
        )
        response = cri_pb2.CreateContainerResponse
        container_id = kubelet.call(RUNTIME + "CreateContainer", create, response).container_id
        kubelet.start_container(container_id)
        asked = cri_pb2.ContainerStatusRequest(container_id=container_id, verbose=True)
        status = kubelet.call(RUNTIME + "ContainerStatus", asked, cri_pb2.ContainerStatusResponse)
        root = Path(f"/proc/{json.loads(status.info['info'])['pid']}/root")
        endpoint = shared_lab.node.endpoint
        if method == "rpc":
            endpoint = request.getfixturevalue("proxy").endpoint
        return Cp(program, endpoint, container_id, method, root)

    yield start
    shared_lab.clean()


@pytest.fixture(scope="module")
def containers(start_container: Start) -> Callable[[str], Cp]:
    """One container for each method, with nothing of former tests in it."""
    started: dict[str, Cp] = {}

    def find(method: str) -> Cp:
        # It may have gone with what another test has cleaned up.
        if method not in started or not (started[method].root / "tmp").exists():
            started[method] = start_container(method, pod_name=method)
        for name in ("root", "tmp"):
            for path in (started[method].root / name).iterdir():
                subprocess.run(["rm", "-rf", path], check=True)
        return started[method]

    return find


@pytest.fixture(params=METHODS)
def cp(request: pytest.FixtureRequest, containers: Callable[[str], Cp]) -> Cp:
    return containers(request.param)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder on the disk: /tmp may be in memory."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="pct-") as name:
        yield Path(name)


def gnu_tar(lab: Lab) -> Image:
    """Busybox, but with GNU's tar."""
    listed = subprocess.run(["ldd", "/usr/bin/tar"], capture_output=True, check=True).stdout
    paths = [*re.findall(r"(/\S+) \(0x", listed.decode()), "/usr/bin/tar"]

    def copied(path: str) -> File:
        size_bytes = Path(path).stat().st_size
        name = "bin/tar" if path == "/usr/bin/tar" else path.lstrip("/")
        return File(name, size_bytes, lambda: Path(path).open("rb"), mode=0o755)

    return lab.layout.image("gnu:1", [lab.base, lab.layout.layer([*map(copied, paths)])])


def whole_seconds(found: dict[str, tuple[object, ...]]) -> dict[str, tuple[object, ...]]:
    """A listing as BusyBox's tar keeps things: whole seconds, and no times of links."""
    return {
        path: (mode, not isinstance(content, Path) and int(str(mtime_ns)) // 10**9, *ids, content)
        for path, (mode, mtime_ns, *ids, content) in found.items()
    }


def plain(found: dict[str, tuple[object, ...]]) -> dict[str, tuple[object, ...]]:
    """A listing without what is not kept: times, owners and set-id bits."""
    return {path: (int(str(mode)) & 0o170777, row[-1]) for path, (mode, *row) in found.items()}


def test_a_tree_there_and_back(cp: Cp, folder: Path) -> None:
    make_tree(folder / "tree")
    told = cp.ok(*cp.keep, folder / "tree", "C:/root")
    assert re.fullmatch(r"copied 9 files, 4 directories, 2 links \(3\.0 MiB\) in [0-9.]+ s\n", told)
    cp.ok("-a", "C:/root/tree", folder / "back")
    expected = listing(folder / "tree", ids=True)
    there, back = (listing(path, ids=True) for path in (cp.root / "root/tree", folder / "back"))
    if cp.method == "exec":
        expected, there, back = map(whole_seconds, (expected, there, back))
    if cp.method == "rpc":
        assert back == there
        expected, there, back = map(plain, (expected, there, back))
    assert there == expected
    assert back == expected
    for name, is_there in (("nothing", Path.is_file), ("empty", Path.is_dir)):
        cp.ok(folder / "tree" / name, f"C:/root/{name}")
        cp.ok(f"C:/root/{name}", folder / name)
        assert is_there(cp.root / "root" / name)
        assert is_there(folder / name)
        assert (cp.root / "root" / name).stat().st_mode == (folder / name).stat().st_mode
    assert stages_in(folder, cp.root / "root") == []


def test_gnu_tar_keeps_times_exactly(shared_lab: Lab, start_container: Start, folder: Path) -> None:
    cp = start_container("exec", gnu_tar(shared_lab))
    make_tree(folder / "tree")
    cp.ok("-a", folder / "tree", "C:/root")
    expected = listing(folder / "tree", ids=True)
    assert listing(cp.root / "root/tree", ids=True) == expected
    cp.ok("-a", "C:/root/tree", folder / "back")
    assert listing(folder / "back", ids=True) == expected
    code, _, stderr = cp("C:/", folder / "all")
    assert (folder / "all/bin/tar").stat().st_size > 0
    assert not (folder / "all/proc").exists(), (code, stderr)


def test_what_is_not_kept_without_archive(cp: Cp, folder: Path) -> None:
    (folder / "f").write_text("1")
    (folder / "f").chmod(0o4751)
    os.utime(folder / "f", (1, 1))
    os.chown(folder / "f", 12, 34)
    for source, target, copied in (
        (folder / "f", "C:/root/f", cp.root / "root/f"),
        ("C:/root/f", folder / "g", folder / "g"),
    ):
        cp.ok(source, target)
        status = copied.stat()
        assert (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (0o751, 0, 0)
        assert status.st_mtime > time.time() - 100


# Set-up below /tmp of the destination, source, destination, and what is there afterwards, or None
# where the copy is refused.
RULES = [
    ((), "src/f", "new", {"new": "f"}),
    ((), "src/f", "new/", None),
    ((), "src/f", "nowhere/new", None),
    (("old",), "src/f", "old", {"old": "f"}),
    (("old",), "src/f", "old/", None),
    (("dir/",), "src/f", "dir", {"dir/f": "f"}),
    (("dir/", "dir/f"), "src/f", "dir/", {"dir/f": "f"}),
    ((), "src", "new", {"new/f": "f", "new/sub/g": "g"}),
    ((), "src", "new/", {"new/f": "f", "new/sub/g": "g"}),
    (("old",), "src", "old", None),
    (("dir/",), "src", "dir", {"dir/src/f": "f", "dir/src/sub/g": "g"}),
    (
        ("dir/", "dir/src/", "dir/src/f", "dir/src/old"),
        "src",
        "dir",
        {"dir/src/f": "f", "dir/src/old": "old", "dir/src/sub/g": "g"},
    ),
    (("dir/",), "src/.", "dir", {"dir/f": "f", "dir/sub/g": "g"}),
    ((), "src/.", "new", {"new/f": "f", "new/sub/g": "g"}),
    (("dir/", "dir/sub/", "dir/sub/g"), "src/", "dir", {"dir/src/f": "f", "dir/sub/g": "old"}),
    (("dir/", "dir/f/"), "src/.", "dir", None),
    (("dir/", "dir/sub"), "src/.", "dir", None),
    (("dir/", "link=dir"), "src/f", "link", {"dir/f": "f"}),
    (("old", "link=old"), "src/f", "link", {"link": "f", "old": "old"}),
]


def prepare(top: Path, names: Sequence[str]) -> None:
    for name in names:
        path, _, target = name.partition("=")
        if target:
            (top / path).symlink_to(target)
        elif path.endswith("/"):
            (top / path).mkdir(parents=True)
        else:
            (top / path).write_text("old")


def contents(top: Path) -> dict[str, str]:
    files = [path for path in top.rglob("*") if path.is_file()]
    return {str(path.relative_to(top)): path.read_text("latin-1") for path in files}


@pytest.mark.parametrize(
    ("cp", "direction"),
    [*((method, "to") for method in METHODS), ("node", "from")],
    indirect=["cp"],
)
def test_the_rules_of_the_destination(cp: Cp, folder: Path, direction: str) -> None:
    inside, outside = cp.root / "tmp", folder
    source_top, target_top = (outside, inside) if direction == "to" else (inside, outside)
    prefixes = (f"{outside}", "C:/tmp") if direction == "to" else ("C:/tmp", f"{outside}")
    (source_top / "a/src/sub").mkdir(parents=True)
    (source_top / "a/src/f").write_text("f")
    (source_top / "a/src/sub/g").write_text("g")
    # In the other direction, and behind the RPC, they are applied by the same code as by node; for
    # exec all are tried with the programs of this machine.
    rules = RULES if (cp.method, direction) == ("node", "to") else RULES[::3]
    as_it_was = []
    for number, (before, *_) in enumerate(rules):
        (target_top / f"case{number}").mkdir()
        prepare(target_top / f"case{number}", before)
        as_it_was.append(contents(target_top / f"case{number}"))

    for number, (before, source, destination, expected) in enumerate(rules):
        words = f"{prefixes[0]}/a/{source}", f"{prefixes[1]}/case{number}/{destination}"
        old = as_it_was[number]
        if expected is None:
            assert cp.refused(*words), (before, source, destination)
            assert contents(target_top / f"case{number}") == old
        else:
            cp.ok(*words)
            found = contents(target_top / f"case{number}")
            assert expected.items() <= found.items(), (before, source, destination)
            # Nothing else has changed or come.
            assert found.keys() - expected.keys() <= {"dir/src/sub/g", *old}

    assert stages_in(outside, inside) == []


@pytest.mark.parametrize("cp", BY_STREAM, indirect=True)
def test_a_thousand_files(cp: Cp, folder: Path) -> None:
    for number in range(10):
        (folder / f"tree/{number}").mkdir(parents=True)
        for inner in range(100):
            (folder / f"tree/{number}/{inner}").write_bytes(b"%d" % number * 1000)
    there = cp.ok(folder / "tree", "C:/root")
    back = cp.ok("C:/root/tree", folder / "back")
    assert there.startswith("copied 1000 files, 11 directories (")
    assert back.startswith("copied 1000 files, 11 directories (")
    for number in (0, 7, 9):
        assert (folder / f"back/{number}/99").read_bytes() == b"%d" % number * 1000
    assert len(list((folder / "back").rglob("*"))) == 1_010


def test_a_sparse_file(cp: Cp, folder: Path) -> None:
    # In an archive the holes are zeros, which take their time.
    size_bytes = (5 * 1024 if cp.method == "node" else 100) * MIB
    with (folder / "sparse").open("wb") as file:
        file.truncate(size_bytes)
        file.seek(size_bytes // 2)
        file.write(b"an island")
    cp.ok(folder / "sparse", "C:/root/sparse")
    cp.ok("C:/root/sparse", folder / "back")
    status = (folder / "back").stat()
    assert (status.st_size, status.st_blocks * 512 < MIB) == (size_bytes, True)
    with (folder / "back").open("rb") as back:
        back.seek(size_bytes // 2 - 1)
        assert back.read(11) == b"\0an island\0"


def test_archives_on_the_standard_streams(cp: Cp, folder: Path) -> None:
    make_tree(folder / "tree")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.add(folder / "tree", "tree")
    with cp.start(*cp.keep, "-", "C:/root", stdin=subprocess.PIPE) as process:
        _, told = process.communicate(buffer.getvalue(), timeout=100)
    assert (process.returncode, told[:14]) == (0, b"copied 9 files")
    code, stdout, stderr = cp("C:/root/tree", "-")
    assert (code, stderr) == (0, "")
    with tarfile.open(fileobj=io.BytesIO(stdout)) as tar:
        members = {member.name: member for member in tar.getmembers()}
        deep = tar.extractfile("tree/sub/deeper/big")
        assert deep is not None
        assert deep.read() == (folder / "tree/sub/deeper/big").read_bytes()
    assert len(members) == 15
    assert members["tree/sub/hard"].islnk() != members["tree/f"].islnk()
    assert members["tree/link"].linkname == "sub/deeper"
    expected = listing(folder / "tree", ids=True)
    there = listing(cp.root / "root/tree", ids=True)
    form = plain if cp.method == "rpc" else whole_seconds  # tarfile rounds them
    assert form(there) == form(expected)
    # What is cut off or no archive changes nothing.
    before = contents(cp.root / "root")
    for data in (buffer.getvalue()[:-9000], buffer.getvalue()[:5000], b"", b"x" * 5000):
        assert cp.refused("-", "C:/root", stdin=data)
    assert "no directory" in cp.refused("-", "C:/nowhere", stdin=buffer.getvalue())
    assert "not a directory" in cp.refused("C:/root/tree/f/", "-")
    assert cp.ok("-", "C:/root", stdin=END_OF_ARCHIVE).startswith("copied 0 files in ")
    assert contents(cp.root / "root") == before
    assert stages_in(cp.root / "root") == []


def test_outputs_that_fail(cp: Cp, folder: Path) -> None:
    with Path("/dev/full").open("wb") as full, cp.start("C:/bin", "-", stdout=full) as process:
        told = process.communicate(timeout=100)[1].decode()
    assert process.returncode == 1
    reason = "pycrictl: cannot write to standard output: no space left on device"
    assert told.splitlines()[0] == reason
    with cp.start("C:/bin", "-") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1000)
        process.stdout.close()
        told = process.stderr.read().decode()
    assert process.returncode == 1
    assert told.splitlines()[0] == "pycrictl: cannot write to standard output: broken pipe"


def test_links_and_what_is_left_out(cp: Cp, folder: Path) -> None:
    tree = cp.root / "root/tree"
    tree.mkdir()
    (tree / "f").write_text("1")
    (tree / "out").symlink_to("/etc/passwd")
    os.mkfifo(tree / "pipe")
    (cp.root / "root/way").symlink_to("tree")
    (cp.root / "root/file").symlink_to("tree/f")
    code, _, stderr = cp("C:/root/tree", folder)
    assert code == 1
    assert sorted(path.name for path in (folder / "tree").iterdir()) == ["f"]
    warnings = [line for line in stderr.splitlines() if "warning" in line]
    assert len(warnings) == 2
    assert "tree/pipe: it is a named pipe" in stderr
    assert 'tree/out: it leads out, to "/etc/passwd"' in stderr
    assert stderr.splitlines()[-1].endswith("left out 2")
    assert cp("-q", "C:/root/tree", folder) == (1, b"", "")
    # A link is copied as such only where it stays inside; -L copies what it leads to.
    (cp.root / "root/away").symlink_to("/etc")
    assert "it leads out" in cp("C:/root/away", folder / "x")[2]
    assert not (folder / "x").exists()
    cp.ok("C:/root/way", folder / "link")
    assert (folder / "link").readlink() == Path("tree")
    if cp.method == "rpc":
        assert "cannot be told to follow" in cp.refused("-L", "C:/root/way", folder)
        return
    cp("-L", "-q", "C:/root/way", folder)
    cp.ok("-L", "C:/root/file", folder)
    assert (folder / "way/f").read_text() == "1"
    assert (folder / "file").read_text() == "1"
    assert not (folder / "file").is_symlink()
    code, stdout, _ = cp("-L", "C:/root/way", "-")
    with tarfile.open(fileobj=io.BytesIO(stdout)) as tar:
        assert sorted(tar.getnames()) == ["way", "way/f", "way/out"]
    assert code == 1


def test_no_clobber_and_limits(cp: Cp, folder: Path) -> None:
    (folder / "d/sub").mkdir(parents=True)
    (folder / "d/f").write_text("new")
    (folder / "d/sub/g").write_text("new")
    (cp.root / "root/d").mkdir()
    (cp.root / "root/d/f").write_text("old")
    if cp.method == "rpc":
        line = cp.refused("--no-clobber", folder / "d", "C:/root")
        assert "cannot be told to leave alone what is there" in line
        cp.ok(folder / "d/sub", "C:/root/d")
    else:
        told = cp.ok("--no-clobber", folder / "d", "C:/root")
        assert told.startswith("copied 1 file, 2 directories (3 B) in")
        assert ", kept 1 that were there" in told
        assert "kept 1" in cp.ok("--no-clobber", folder / "d/f", "C:/root/d/f")
    assert contents(cp.root / "root/d") == {"f": "old", "sub/g": "new"}
    told = cp.ok("--no-clobber", "C:/root/d", folder)
    assert told.startswith("copied 2 directories in ")
    assert "kept 2" in told
    assert "more than 5 bytes" in cp.refused("--max-size", "5", folder / "d", "C:/tmp/x")
    assert "more than 5 bytes" in cp.refused("--max-size", "5", "C:/root/d", folder / "x")
    assert not (cp.root / "tmp/x").exists()
    assert not (folder / "x").exists()
    cp.ok("--max-size", "6", folder / "d", "C:/tmp/x")


def test_file_systems_that_are_not_written(cp: Cp, start_container: Start, folder: Path) -> None:
    (folder / "volume").mkdir()
    (folder / "f").write_text("new")
    (folder / "single").write_text("a longer old text")
    closed = start_container(
        cp.method,
        mounts=[(folder / "volume", "/volume"), (folder / "single", "/etc/single")],
        read_only=True,
        user=0 if cp.method == "exec" else 1234,
    )
    assert "read-only file system" in closed.refused(folder / "f", "C:/f")
    closed.ok(folder / "f", "C:/volume/f")
    assert (folder / "volume/f").read_text() == "new"
    assert (folder / "volume/f").stat().st_uid == (0 if cp.method == "exec" else 1234)
    inode = (folder / "single").stat().st_ino
    assert "mounted there" in closed.refused(folder / "f", "C:/etc/single")
    assert (folder / "single").read_text() == "a longer old text"
    if cp.method == "node":  # elsewhere the stage needs a directory that can be written
        closed.ok("--in-place", folder / "f", "C:/etc/single")
        assert (folder / "single").read_text() == "new"
    assert (folder / "single").stat().st_ino == inode
    for path in ("/proc/sys/kernel", "/sys/kernel"):
        assert "never copied" in cp.refused(folder / "f", f"C:{path}")
    assert "never copied" in cp.refused("C:/proc/1/environ", folder / "x")
    hosts = (cp.root / "etc/hosts").read_bytes()
    assert "mounted there" in cp.refused(folder / "f", "C:/etc/hosts")
    assert (cp.root / "etc/hosts").read_bytes() == hosts
    if cp.method != "rpc":
        cp.ok("--in-place", folder / "f", "C:/etc/hosts")
        assert (cp.root / "etc/hosts").read_text() == "new"
        (cp.root / "etc/hosts").write_bytes(hosts)
    assert stages_in(folder, cp.root / "etc") == []


def test_a_user_who_is_not_root(start_container: Start, folder: Path) -> None:
    cp = start_container("exec", user=1000)
    (folder / "f").write_text("1")
    assert "permission denied" in cp.refused(folder / "f", "C:/root/f")
    cp.ok(folder / "f", "C:/tmp/f")
    status = (cp.root / "tmp/f").stat()
    assert (status.st_uid, status.st_size) == (1000, 1)


def test_a_distroless_container(shared_lab: Lab, start_container: Start, folder: Path) -> None:
    binary = Path("/bin/busybox")
    only = File("busybox-app", binary.stat().st_size, lambda: binary.open("rb"), mode=0o755)
    image = shared_lab.layout.image("static:1", [shared_lab.layout.layer([only])])
    make_tree(folder / "tree")
    rpc = start_container("rpc", image, command=["/busybox-app", "sleep", "1000000"])
    for cp in (rpc, replace(rpc, method="node")):
        inside, back = f"C:/{cp.method}", folder / cp.method
        cp.ok(*cp.keep, folder / "tree", inside)
        cp.ok("-a", inside, back)
        assert plain(listing(back)) == plain(listing(folder / "tree"))
        cp.ok("C:/busybox-app", back)
        assert (back / "busybox-app").read_bytes() == binary.read_bytes()
    assert (folder / "node/f").stat().st_mtime_ns == (folder / "tree/f").stat().st_mtime_ns
    cp = replace(rpc, method="exec")
    for words in (
        (binary, "C:/new"),
        ("C:/busybox-app", folder / "new"),
        ("C:/busybox-app", "-"),
    ):
        assert cp.refused(*words) == "pycrictl: there is no tar in the container"
    assert not (folder / "new").exists()
    assert not (cp.root / "new").exists()


def test_a_container_with_tar_only(shared_lab: Lab, start_container: Start, folder: Path) -> None:
    kept = ("bin/busybox", "bin/tar", "bin/sleep", "tmp")
    files = [file for file in busybox_files() if file.path.strip("/") in kept]
    image = shared_lab.layout.image("tar:1", [shared_lab.layout.layer(files)])
    cp = start_container("exec", image)
    cp.ok("C:/bin/busybox", folder)
    assert (folder / "busybox").stat().st_size > MIB
    line = cp.refused(folder / "busybox", "C:/new")
    assert line == "pycrictl: there is no test in the container"


def test_auto_tells_which_method_it_took(start_container: Start, folder: Path) -> None:
    cp = start_container("auto", pod_name="auto")
    (folder / "f").write_text("1")
    told = cp.ok("--progress", "json", folder / "f", "C:/tmp/f")
    assert json.loads(told.splitlines()[-1])["files"] == 1
    command = [*PYCRICTL, "-t", "30s", "-r", cp.endpoint, "--debug", "cp"]
    done = subprocess.run(
        [*command, f"{cp.id[:13]}:/tmp/f", folder / "g"],
        capture_output=True,
        check=True,
        text=True,
    )
    log = [line.partition(" = ")[2] for line in done.stderr.splitlines() if ".copy: = " in line]
    assert log[0] == "trying the method rpc"
    assert log[1].startswith("the method rpc does not serve: ")
    assert log[2:] == ["trying the method node", "the method node serves"]
    # What went wrong is no reason to try another way.
    failed = subprocess.run(
        [*command, "auto/main:/nowhere", folder / "g"],
        capture_output=True,
        check=False,
        text=True,
    )
    assert failed.returncode == 1
    assert "trying the method exec" not in failed.stderr
    assert 'cannot copy "/nowhere": no such file or directory' in failed.stderr


@pytest.mark.parametrize("cp", BY_STREAM, indirect=True)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_copy_that_is_ended_leaves_nothing(cp: Cp, folder: Path, number: signal.Signals) -> None:
    """As ``kills`` does with SIGKILL."""
    for source, top, words in (
        (folder / "d", cp.root / "tmp", (folder / "d", "C:/tmp/new")),
        (cp.root / "root/d", folder, ("C:/root/d", folder / "new")),
    ):
        source.mkdir()
        with (source / "big").open("wb") as file:
            file.truncate((4096 if cp.method == "exec" else 512) * MIB)
        with cp.start(*map(str, words)) as process:
            wait_until(stages_in, top)
            process.send_signal(number)
            _, stderr = process.communicate(timeout=WAIT_S)
        assert process.returncode == 128 + number, stderr
        assert stderr == (b"pycrictl: interrupted\n" if number == signal.SIGINT else b"")
        assert not (top / "new").exists()
        wait_until(has_no_stage, top)


@pytest.mark.parametrize("cp", BY_STREAM, indirect=True)
def test_a_disk_that_is_full(cp: Cp, start_container: Start, folder: Path) -> None:
    (folder / "small").mkdir()
    # Hardly too much: a runtime may lose what tar had to say if that leaves more to be read.
    (folder / "big").write_bytes(os.urandom(8 * MIB))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", folder / "small"], check=True)
    try:
        (folder / "small/old").write_text("old")
        full = start_container(cp.method, mounts=[(folder / "small", "/small")])
        (full.root / "root/big").write_bytes((folder / "big").read_bytes())
        assert "no space left on device" in full.refused(folder / "big", "C:/small/old")
        assert "no space left on device" in full.refused("C:/root/big", folder / "small/old")
        assert contents(folder / "small") == {"old": "old"}
        assert stages_in(folder / "small") == []
    finally:
        subprocess.run(["umount", "--lazy", folder / "small"], check=True)


def test_tar_that_is_killed(start_container: Start, folder: Path) -> None:
    # A runtime may leave the tar of an interrupted copy behind, so not where there were others.
    cp = start_container("exec")
    with (folder / "big").open("wb") as file:
        file.truncate(4096 * MIB)
    with cp.start(folder / "big", "C:/tmp/new") as process:
        wait_until(lambda: stages_in(cp.root / "tmp") != [] and kill_tar(cp) > 0)
        _, stderr = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert len(stderr.splitlines()) == 1
    assert list((cp.root / "tmp").iterdir()) == []


def kill_tar(cp: Cp) -> int:
    """Kill the ``tar`` processes in the container; how many there were."""
    namespace = (cp.root.parent / "ns/pid").readlink()
    killed = 0
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "ns/pid").readlink() == namespace and (path / "comm").read_text() == "tar\n":
                os.kill(int(path.name), signal.SIGKILL)
                killed += 1
        except OSError:
            continue
    return killed


def has_no_stage(top: Path) -> bool:
    return not stages_in(top)


def wait_until(is_so: Callable[..., object], *about: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so(*about):
        assert time.monotonic() < deadline
        time.sleep(0.02)
