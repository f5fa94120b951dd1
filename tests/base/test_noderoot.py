"""Paths of a node whose root is another directory, and the program used on such a node."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.base import noderoot
from pycrictl.base.errors import PycrictlError, UsageError
from pycrictl.cli import context
from pycrictl.runtime.cri.calls import endpoints
from pycrictl.runtime.cri.lifecycle.control import remove_logs
from tests.cli.run import Run
from tests.fakecri import FakeServer

VERSION = cri_pb2.VersionResponse(
    version="0.1.0", runtime_name="fake", runtime_version="1", runtime_api_version="v1"
)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """Make a node's root, and use it."""
    for name in ("etc", "run/containerd", "var/log/pods", "proc/self"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "var/run").symlink_to("/run")
    noderoot.use(str(tmp_path))
    yield tmp_path
    noderoot.use("/")


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/etc/x", "etc/x"),
        ("/var/run/containerd/x.sock", "run/containerd/x.sock"),
        ("/nosuch/a", "nosuch/a"),
        ("/../../etc/x", "etc/x"),
        ("/links/up", "etc/x"),
        ("/links/beside", "links/real"),
        ("/links/two", "links/real"),
        ("/links/dir/x", "etc/x"),
        ("/proc/1/root/etc", "proc/1/root/etc"),
        ("/proc/../../../etc", "proc/etc"),
        ("/proc", "proc"),
        ("/process", "process"),
        ("/links/proc", "proc/self"),
        ("/", ""),
    ],
)
def test_links_lead_where_they_do_on_the_node(root: Path, path: str, target: str) -> None:
    links = root / "links"
    links.mkdir()
    (links / "up").symlink_to("../../../../etc/x")
    (links / "beside").symlink_to("real")
    (links / "two").symlink_to("/links/beside")
    (links / "dir").symlink_to("/etc")
    (links / "proc").symlink_to("/proc/self")
    assert noderoot.locate(path).rstrip("/") == str(root / target).rstrip("/")


def test_the_last_link_may_be_meant(root: Path) -> None:
    (root / "etc/link").symlink_to("/nosuch")
    assert noderoot.locate("/etc/link", follow=False) == str(root / "etc/link")
    assert noderoot.locate("/etc/link") == str(root / "nosuch")
    assert noderoot.locate("/var/run/x", follow=False) == str(root / "run/x")


def test_links_in_a_circle(root: Path) -> None:
    (root / "a").symlink_to("/b")
    (root / "b").symlink_to("a")
    with pytest.raises(PycrictlError, match="too many symbolic links"):
        noderoot.locate("/a")


def test_what_somebody_names_may_be_at_its_own_path(root: Path, tmp_path: Path) -> None:
    (root / "etc/there").touch()
    own = tmp_path / "own"
    own.touch()
    assert noderoot.given("/etc/there") == str(root / "etc/there")
    assert noderoot.given(str(own)) == str(own)
    assert noderoot.given("relative") == "relative"


def test_a_root_without_procfs_leaves_our_own(root: Path) -> None:
    (root / "proc/self").rmdir()
    assert noderoot.locate("/proc/1/stat") == "/proc/1/stat"


@pytest.mark.parametrize("name", ["", "/nonexistent", __file__])
def test_no_such_root(name: str) -> None:
    with pytest.raises(UsageError, match="is not a directory"):
        noderoot.use(name)
    run = Run("--host-root", name, "version")
    assert (run.code, run.stdout) == (1, "")
    assert "--host-root" in run.stderr.splitlines()[0]


def test_a_debug_pod_is_seen(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noderoot, "DEBUG_ROOT", str(root))
    monkeypatch.setattr(endpoints, "ENDPOINTS", (own := f"unix://{root}/own.sock",))
    assert context.find_root() == "/"  # no process: what is mounted there is not running
    (root / "proc/1").mkdir()
    assert context.find_root() == str(root)
    Path(own.removeprefix("unix://")).touch()  # a runtime of this machine
    assert context.find_root() == "/"


def test_the_runtime_and_its_configuration_are_found_below(root: Path, fake: FakeServer) -> None:
    fake.prepare("Version", VERSION, VERSION, VERSION, VERSION)
    (root / "run/containerd/containerd.sock").symlink_to("/run/real.sock")
    os.link(fake.path, root / "run/real.sock")
    below = ("--host-root", str(root))
    assert Run(*below, "version").code == 0
    assert Run(*below, "-r", "unix:///var/run/containerd/containerd.sock", "version").code == 0
    (root / "etc/crictl.yaml").write_text("runtime-endpoint: unix:///run/real.sock\n")
    assert Run(*below, "version").code == 0
    assert Run(*below, "config", "runtime-endpoint").stdout == "unix:///run/real.sock\n"


def test_logs_are_removed_below_and_nowhere_else(root: Path) -> None:
    (root / "var/log/pods/0.log").touch()
    assert remove_logs("/var/log/pods/0.log") == ()
    assert not list((root / "var/log/pods").iterdir())
    (root / "linked").symlink_to("/etc")
    (root / "etc/0.log").touch()
    assert len(remove_logs("/linked/0.log")) == 1
    assert (root / "etc/0.log").exists()
