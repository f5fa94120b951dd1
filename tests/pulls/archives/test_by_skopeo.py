"""Archives on other runtimes than containerd; on CRI-O by skopeo, on the storage that CRI names."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from pycrictl._proto import cri_pb2
from tests.cli.run import Run
from tests.fakecri import FakeServer

from .archives import CONFIG, digest_of, layout, tar

NAME = "example.org/app:1"


@pytest.fixture
def storage(
    tmp_path: Path,
    fake: FakeServer,
    monkeypatch: pytest.MonkeyPatch,
    as_root: None,
    on_debian: None,
) -> str:
    """The storage of a CRI-O, in skopeo's words; it has the image of an archive."""
    conf = tmp_path / "storage.conf"
    conf.write_text(f'[storage]\ndriver = "vfs"\nrunroot = "{tmp_path}/run"\n')
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(conf))
    fake.offer("Version", cri_pb2.VersionResponse(version="0.1.0", runtime_name="cri-o"))
    usage = cri_pb2.FilesystemUsage()
    usage.fs_id.mountpoint = f"{tmp_path}/storage/vfs-images"
    fake.offer("ImageFsInfo", cri_pb2.ImageFsInfoResponse(image_filesystems=[usage]))
    image = cri_pb2.Image(id=digest_of(CONFIG).partition(":")[2], repo_tags=[NAME])
    fake.offer("ImageStatus", cri_pb2.ImageStatusResponse(image=image))
    (tmp_path / "in.tar").write_bytes(tar(layout()))
    done = Run("-r", fake.endpoint, "load", "-i", str(tmp_path / "in.tar"))
    assert (done.code, done.stdout, done.stderr) == (0, f"{NAME}\n", "")
    return f"containers-storage:[vfs@{tmp_path}/storage]"


def config_of(image: str) -> object:
    done = subprocess.run(["skopeo", "inspect", "--config", image], capture_output=True, check=True)
    return json.loads(done.stdout)["config"]


@pytest.mark.parametrize("form", ["oci", "docker"])
def test_save_load_and_tag(storage: str, fake: FakeServer, tmp_path: Path, form: str) -> None:
    assert config_of(storage + NAME) == {"Cmd": ["/hello"]}
    out = tmp_path / "out.tar"
    done = Run("-r", fake.endpoint, "save", NAME, "--format", form, "-o", str(out))
    assert (done.code, done.stderr) == (0, "")
    assert config_of(f"{form}-archive:{out}") == {"Cmd": ["/hello"]}
    assert Run("-r", fake.endpoint, "tag", NAME, "app:2").code == 0
    assert config_of(f"{storage}docker.io/library/app:2") == {"Cmd": ["/hello"]}
    assert Run("-r", fake.endpoint, "load", "-i", str(out)).stdout == f"{NAME}\n"


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["save", NAME, "-o", "out.tar"], "copy --quiet containers-storage:@"),
        (["load", "-i", "in.tar"], "copy --quiet oci-archive:"),
        (["tag", NAME, "app:2"], "containers-storage:docker.io/library/app:2"),
    ],
)
def test_without_skopeo_the_command_is_told(
    fake: FakeServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    command: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    (tmp_path / "in.tar").write_bytes(tar(layout()))
    image = cri_pb2.Image(id=digest_of(CONFIG), repo_tags=[NAME])
    fake.offer("ImageStatus", cri_pb2.ImageStatusResponse(image=image))
    fake.offer("ImageFsInfo", cri_pb2.ImageFsInfoResponse())
    for runtime, said in (("cri-o", command), ("other", "is not containerd")):
        fake.offer("Version", cri_pb2.VersionResponse(version="0.1.0", runtime_name=runtime))
        done = Run("-r", fake.endpoint, *words)
        assert (done.code, done.stdout) == (1, "")
        assert said in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["in.tar"]
