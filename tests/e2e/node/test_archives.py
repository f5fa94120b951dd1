"""``save``, ``load`` and ``tag`` on the real containerd."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import termios
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pycrictl.base.errors import ArchiveError
from pycrictl.pulls.archives.archive import Member
from pycrictl.pulls.archives.loading import Load
from pycrictl.runtime.containerd.grpc_client import ContainerdClient
from pycrictl.runtime.containerd.store import own_platform
from tests.pulls.archives.archives import (
    CONFIG,
    LAYER,
    MANIFEST,
    described,
    digest_of,
    index,
    layout,
    path_of,
    tar,
    written,
)
from tests.waiting import wait_until

from .forked import Program
from .images import Image, zero_file
from .lab import MIB, Lab

NAME = "registry.example/shop/web:1.4"


@pytest.fixture
def web(lab: Lab) -> Iterator[Image]:
    """An image of three layers on the node, under ``NAME`` as well."""
    image = lab.image("web:1.4", 3 * MIB, 20 * MIB)
    lab.node.kubelet.pull(lab.push(image))
    yield image
    lab.clean()


@pytest.fixture
def nothing_left(lab: Lab) -> Iterator[None]:
    """Require that a refused load leaves neither lease nor ingest nor blob."""
    lab.node.store.collect_garbage()
    before = lab.node.store.blobs().keys()
    yield
    assert lab.node.store.leases() == []
    assert lab.node.store.ingests() == {}
    assert lab.node.store.blobs().keys() == before


def forget_images(lab: Lab) -> None:
    """Remove all images but pause, and their blobs."""
    for image in lab.node.kubelet.images():
        if lab.reference(lab.pause) not in image.repo_tags:
            lab.node.kubelet.remove_image(image.id)
    lab.node.store.collect_garbage()


def tags(lab: Lab) -> set[str]:
    known = {tag for image in lab.node.kubelet.images() for tag in image.repo_tags}
    return known - {lab.reference(lab.pause)}


def loaded(lab: Lab, *names: str) -> bool:
    """Return whether the CRI has come to know the loaded images, as it does from an event."""
    return tags(lab) == set(names)


def start(lab: Lab, reference: str) -> str:
    kubelet = lab.node.kubelet
    pod = kubelet.run_pod("loaded")
    container = kubelet.create_container(pod, reference, ["sleep", "1000000"])
    kubelet.start_container(container)
    return container


@pytest.mark.parametrize("form", ["oci", "docker"])
@pytest.mark.parametrize("unpack", [True, False])
def test_round_trip(
    lab: Lab, crictl: Program, web: Image, folder: Path, form: str, unpack: bool
) -> None:
    reference = lab.reference(web)
    saved = crictl.run("save", reference, "--format", form, "-o", folder / "web.tar")
    assert (saved.status, saved.stdout, saved.stderr) == (0, b"", "")
    forget_images(lab)
    chosen = ["--unpack"] if unpack else []
    done = crictl.run("load", "-i", folder / "web.tar", *chosen)
    assert (done.status, done.stdout.decode(), done.stderr) == (0, f"{reference}\n", "")
    wait_until(lambda: loaded(lab, reference))
    (image,) = [known for known in lab.node.kubelet.images() if reference in known.repo_tags]
    assert image.id == web.config_digest
    assert lab.node.store.leases() == []
    assert (len(lab.node.store.snapshots()) > 2) is unpack
    start(lab, reference)


@pytest.mark.parametrize("form", ["oci", "docker"])
def test_a_stream_saves_the_same_bytes_each_time(
    lab: Lab, crictl: Program, web: Image, form: str
) -> None:
    words = ("save", lab.reference(web), "--format", form)
    first, second = (crictl.run(*words).stdout for _ in range(2))
    assert first == second
    before = lab.node.store.blobs()  # a present layer is not written again
    assert crictl.run("load", stdin=first).status == 0
    assert lab.node.store.ingests() == {}
    assert form == "docker" or lab.node.store.blobs() == before
    forget_images(lab)
    assert crictl.run("load", stdin=first).stdout.decode() == f"{lab.reference(web)}\n"


def test_a_slow_reader_costs_no_memory(lab: Lab, crictl: Program, command: list[str]) -> None:
    """It reads only what has filled the pipe; meanwhile nothing gathers in memory."""
    image = lab.image("large:1", 100 * MIB)
    reference = lab.push(image)
    lab.node.kubelet.pull(reference)
    expected = hashlib.sha256(crictl.run("save", reference).stdout).digest()
    with subprocess.Popen([*command, "save", reference], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pipe, read, peaks = process.stdout.fileno(), hashlib.sha256(), list[int]()
        capacity = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
        for _ in range(32):
            wait_until(lambda: waiting_bytes(pipe) > capacity // 2)
            peaks.append(peak_kib(process.pid))
            read.update(os.read(pipe, capacity))
        while piece := os.read(pipe, capacity):
            read.update(piece)
            peaks[-1] = peak_kib(process.pid) or peaks[-1]
    assert (process.returncode, read.digest()) == (0, expected)
    assert peaks[-1] - peaks[0] < 16 * 1024
    lab.clean()


def waiting_bytes(pipe: int) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def peak_kib(pid: int) -> int:
    """Return the most memory that a process has had; 0 if it has ended."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(match[1]) if match else 0


def test_a_reader_that_goes_away(lab: Lab, command: list[str], web: Image) -> None:
    """As ``head`` does; it is no error to tell."""
    words = [*command, "save", lab.reference(web)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert os.read(process.stdout.fileno(), 1000)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 128 + signal.SIGPIPE


def test_skopeo_reads_and_writes(lab: Lab, crictl: Program, web: Image, folder: Path) -> None:
    saved = folder / "web.tar"
    crictl.run("save", lab.reference(web), "-o", saved)
    forget_images(lab)
    for number, kind in enumerate(("docker-archive", "oci-archive", "oci")):
        path = folder / kind
        words = [
            "skopeo",
            "copy",
            f"oci-archive:{saved}",
            f"{kind}:{path}:example.org/web:{number}",
        ]
        subprocess.run(words, check=True, capture_output=True)
        done = crictl.run("load", "-i", path)
        assert (done.status, done.stdout.decode()) == (0, f"example.org/web:{number}\n"), (
            done.stderr
        )
    wait_until(lambda: len(tags(lab)) == 3)
    (image,) = [known for known in lab.node.kubelet.images() if len(known.repo_tags) == 3]
    assert image.id == web.config_digest


def test_docker_archives_of_other_writers(lab: Lab, crictl: Program) -> None:
    """Those of Go's container registry library (crane, ko, kaniko): other names, gzip layers."""
    listed = [{"Config": digest_of(CONFIG), "RepoTags": [NAME], "Layers": ["1f.tar.gz"]}]
    files = {digest_of(CONFIG): CONFIG, "1f.tar.gz": gzip.compress(LAYER)}
    done = crictl.run("load", stdin=tar({**files, "manifest.json": written(listed)}))
    assert (done.status, done.stdout.decode()) == (0, f"{NAME}\n"), done.stderr
    wait_until(lambda: loaded(lab, NAME))
    lab.clean()


def test_an_image_of_another_platform(lab: Lab, crictl: Program, web: Image, folder: Path) -> None:
    """It has no index; its config says what it is made for."""
    out = folder / "web.tar"
    for platform, status in (("linux/s390x", 1), (own_platform(), 0)):
        done = crictl.run("save", lab.reference(web), "--platform", platform, "-o", out)
        assert (done.status, out.exists()) == (status, not status)
        assert status == 0 or "is not made for linux/s390x" in done.stderr


def test_several_images_share_their_layers(
    lab: Lab, crictl: Program, web: Image, folder: Path
) -> None:
    other = lab.image("other:1", MIB)
    lab.node.kubelet.pull(lab.push(other))
    names = [lab.reference(web), lab.reference(other)]
    crictl.run("save", *names, "-o", folder / "both.tar")
    with tarfile.open(folder / "both.tar") as archive:
        assert len(archive.getnames()) == len(set(archive.getnames()))
    forget_images(lab)
    assert crictl.run("load", "-i", folder / "both.tar").stdout.decode().split() == names
    wait_until(lambda: loaded(lab, *names))


def test_an_image_of_several_platforms(lab: Lab, crictl: Program, folder: Path) -> None:
    image = lab.layout.multi_platform_image("many:1", [lab.base])
    entry = {
        "digest": image.digest,
        "size": lab.layout.blob(image.digest).stat().st_size,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "annotations": {"io.containerd.image.name": "example.org/many:1"},
    }
    (lab.layout.folder / "index.json").write_text(json.dumps({"manifests": [entry]}))
    try:
        assert crictl.run("load", "-i", lab.layout.folder).status == 0
    finally:
        (lab.layout.folder / "index.json").unlink()
    lab.node.store.collect_garbage()
    assert (
        crictl.run("save", "example.org/many:1", "--platform", "all", "-o", folder / "all").status
        == 0
    )
    done = crictl.run(
        "save", "example.org/many:1", "--platform", "linux/s390x", "-o", folder / "s390x.tar"
    )
    assert done.status == 0, done.stderr
    with tarfile.open(folder / "s390x.tar") as archive:
        assert len([name for name in archive.getnames() if name.startswith("blobs")]) == 3
    refused = crictl.run(
        "save", "example.org/many:1", "--platform", "linux/mips", "-o", folder / "no"
    )
    assert "is not made for linux/mips" in refused.stderr
    assert "linux/s390x" in refused.stderr
    words = ("--platform", "all", "--format", "docker")
    refused = crictl.run("save", "example.org/many:1", *words, "-o", folder / "no")
    assert "needs one platform" in refused.stderr
    # What a pull leaves out is missed before anything is written.
    lab.node.kubelet.remove_image("example.org/many:1")
    lab.node.store.collect_garbage()
    reference = lab.push(image)
    lab.node.kubelet.pull(reference)
    refused = crictl.run("save", reference, "--platform", "linux/s390x", "-o", folder / "no")
    assert "not on this node" in refused.stderr
    assert not [path for path in folder.iterdir() if path.name.startswith("no")]
    lab.clean()


def test_a_name_for_an_image_without_one(lab: Lab, crictl: Program) -> None:
    refused = crictl.run("load", stdin=tar(layout(name="1.4")))  # a mere tag names no image
    said = "pycrictl: an archived image has no name\nhint: name it with --name\n"
    assert refused.stderr == said
    refused = crictl.run("load", "-i", "/etc")
    assert refused.stderr == "pycrictl: no image is in the archive\n"
    done = crictl.run("load", "--name", "app", stdin=tar(layout(name="")))
    assert done.stdout == b"docker.io/library/app:latest\n"
    wait_until(lambda: loaded(lab, "docker.io/library/app:latest"))
    assert crictl.run("tag", "app", NAME).status == 0
    wait_until(lambda: loaded(lab, "docker.io/library/app:latest", NAME))
    lab.clean()


INNER = written({"manifests": [described(MANIFEST)]})
DEEP = written({"manifests": [described(INNER)]})
DEEPER = written({"manifests": [described(DEEP)]})
LYING = written({"config": described(CONFIG), "layers": [{**described(LAYER), "size": 5}]})
NESTED = b'{"manifests":' + b"[" * 1000 + b"]" * 1000 + b"}"
TWO = written({"config": described(CONFIG), "layers": []})
HUGE = MANIFEST[:-1] + b" " * 5 * MIB + b"}"


@pytest.mark.parametrize(
    ("files", "error"),
    [
        (layout(layer=LAYER[:-1] + b"x"), "is damaged: its digest does not match"),
        (layout(layer=b""), "is damaged: its digest does not match"),
        ({k: v for k, v in layout().items() if k != path_of(LAYER)}, "is not complete for"),
        ({k: v for k, v in layout().items() if k != path_of(MANIFEST)}, "is not complete for"),
        (layout({path_of(LYING): LYING}, index=index((LYING, "a:1"))), "not 5 as listed"),
        (layout(index=b"{"), "no image is in the archive"),
        (layout(index=NESTED), "no image is in the archive"),
        (layout(index=b" " * 5 * MIB), "index.json is too large: 5.0 MiB"),
        (layout(index=written({"manifests": [{}]})), "without its digest and size"),
        (layout(index=index((CONFIG, "a:1"))), "is neither a manifest nor an index"),
        (layout(name="Upper/a:1"), "is not an image name"),
        (
            layout(
                {path_of(data): data for data in (INNER, DEEP, DEEPER)},
                index=index((DEEPER, "a:1")),
            ),
            "nested too deeply",
        ),
        (
            layout({path_of(TWO): TWO}, index=index((MANIFEST, "a:1"), (TWO, "a:1"))),
            "two images in the archive are named",
        ),
        (
            layout({path_of(HUGE): HUGE}, index=index((HUGE, "a:1"))),
            "is neither a manifest nor an index",
        ),
        ({"blobs/sha256/../../etc/x": b""}, "points outside the archive"),
        ({"blobs/x": b""}, "no image is in the archive"),
        ({"x": b""}, "no image is in the archive"),
        ({"manifest.json": b'[{"Config":"c.json"}]'}, "is missing from the archive"),
        ({"manifest.json": b'[{"Config":"c.json"}]', "index.json": index()}, "no image is in"),
    ],
)
def test_hostile_archives(
    crictl: Program, nothing_left: None, files: dict[str, Any], error: str
) -> None:
    done = crictl.run("load", stdin=tar(files))
    assert (done.status, done.stdout) == (1, b"")
    assert error in done.stderr
    assert len(done.stderr.splitlines()) <= 2


def test_an_archive_of_countless_files(lab: Lab, nothing_left: None) -> None:
    members = (Member(f"{number}.json", 2, iter((b"{}",))) for number in itertools.count())
    socket = lab.node.endpoint.removeprefix("unix://")
    with closing(ContainerdClient(socket, timeout_s=20)) as client:
        load = Load(client, "countless", "", None, most_files=5)
        with pytest.raises(ArchiveError, match="more than 5 files"):
            load.run(members)


def test_a_layer_that_cannot_be_unpacked(crictl: Program, nothing_left: None) -> None:
    layer = b"this is no archive of files"
    config = written({"rootfs": {"type": "layers", "diff_ids": [digest_of(layer)]}})
    layers = [described(layer, "layer.v1.tar")]
    manifest = written({"config": described(config, "config.v1+json"), "layers": layers})
    files = {path_of(data): data for data in (manifest, config, layer)}
    files["index.json"] = index((manifest, "a:1"))
    done = crictl.run("load", "--unpack", stdin=tar(files))
    assert (done.status, len(done.stderr.splitlines())) == (1, 1)


def test_a_blob_that_never_ends(lab: Lab, crictl: Program, nothing_left: None) -> None:
    entry = tarfile.TarInfo(path_of(LAYER))
    entry.size = 8 * 1024**4
    done = crictl.run("load", stdin=entry.tobuf() + bytes(MIB))
    assert "are free" in done.stderr


def test_a_killed_load_goes_on(
    lab: Lab, crictl: Program, command: list[str], web: Image, folder: Path
) -> None:
    """Killed ten times while bytes arrive: each load writes only the rest; none is left."""
    data = crictl.run("save", lab.reference(web)).stdout
    forget_images(lab)
    largest = max(web.layers, key=lambda layer: layer.size_bytes)
    ref, kills = f"layer-{largest.digest}", 10
    arrived = 0
    for kill in range(1, kills + 1):
        given = largest.size_bytes * kill // (kills + 1)
        process = subprocess.Popen([*command, "load"], stdin=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(data[: len(data) - largest.size_bytes + given])
        process.stdin.flush()
        wait_until(lambda: lab.node.store.ingests().get(ref, (0, 0))[0] > arrived)  # noqa: B023
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdin.close()
        assert tags(lab) == set()
        now, _ = lab.node.store.ingests()[ref]
        assert now > arrived
        arrived = now
    assert len(lab.node.store.leases()) == kills
    (folder / "web.tar").write_bytes(data)
    assert crictl.run("load", "-i", folder / "web.tar").status == 0
    wait_until(lambda: loaded(lab, lab.reference(web)))
    assert lab.node.store.leases() == []
    assert lab.node.store.ingests() == {}
    start(lab, lab.reference(web))


def test_a_load_killed_while_it_unpacks_goes_on(
    lab: Lab, crictl: Program, command: list[str], web: Image, folder: Path
) -> None:
    (folder / "web.tar").write_bytes(crictl.run("save", lab.reference(web)).stdout)
    forget_images(lab)
    before = len(lab.node.store.snapshots())
    process = subprocess.Popen([*command, "load", "--unpack", "-i", folder / "web.tar"])
    wait_until(lambda: len(lab.node.store.snapshots()) > before)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert crictl.run("load", "--unpack", "-i", folder / "web.tar").status == 0
    wait_until(lambda: loaded(lab, lab.reference(web)))
    assert lab.node.store.leases() == []
    lab.node.store.collect_garbage()
    assert not [key for key in lab.node.store.snapshots() if key.startswith("extract-")]
    start(lab, lab.reference(web))


@pytest.mark.parametrize("from_file", [True, False])
def test_ctrl_c_keeps_what_has_arrived(
    lab: Lab, crictl: Program, command: list[str], web: Image, folder: Path, from_file: bool
) -> None:
    data = crictl.run("save", lab.reference(web)).stdout
    forget_images(lab)
    ref = f"layer-{max(web.layers, key=lambda layer: layer.size_bytes).digest}"
    pipe, words = subprocess.PIPE, list[str]()
    if from_file:
        os.mkfifo(folder / "pipe")
        words = ["-i", str(folder / "pipe")]
    with subprocess.Popen([*command, "load", *words], stdin=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        with (folder / "pipe").open("wb") if from_file else process.stdin as given:
            given.write(data[:-MIB])
            given.flush()
            wait_until(lambda: lab.node.store.ingests().get(ref, (0, 0))[0] > MIB)
            process.send_signal(signal.SIGINT)
            status = process.wait(timeout=10)
        said = process.stderr.read().decode().splitlines()[-1]
    kept = "the load was stopped; the data so far is kept for a day, for the next load"
    assert (status, said) == (130, f"pycrictl: {kept}")
    assert lab.node.store.ingests()[ref][0] > MIB
    assert crictl.run("load", stdin=data).status == 0
    assert (lab.node.store.leases(), lab.node.store.ingests()) == ([], {})


def test_the_bars_of_unpacking(lab: Lab, crictl: Program) -> None:
    large = lab.layout.layer([zero_file("zeros", 1024 * MIB)])  # takes a second to unpack
    image = lab.layout.image("zeros:1", [lab.base, large])
    lab.node.kubelet.pull(lab.push(image))
    data = crictl.run("save", lab.reference(image)).stdout
    forget_images(lab)
    done = crictl.run("load", "--unpack", "--progress", "json", stdin=data)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    phases = [line["phase"] for line in lines if line.get("layer") == large.digest]
    assert phases == sorted(phases, key=["waiting", "downloading", "extracting", "done"].index)
    assert {"extracting", "done"} <= set(phases)
    assert lines[-1]["percent"] == 100
    lab.clean()


def test_layers_of_zstd(lab: Lab, crictl: Program, folder: Path) -> None:
    """They pass through as they are, and containerd unpacks them."""
    base, name = lab.base, "example.org/zstd:1"
    plain = gzip.decompress(lab.layout.blob(base.digest).read_bytes())
    layer = subprocess.run(["zstd", "-q"], input=plain, stdout=subprocess.PIPE, check=True).stdout
    config = written(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [base.diff_id]},
        }
    )
    kind = "layer.v1.tar+zstd"
    layers = [described(layer, kind)]
    manifest = written({"config": described(config, "config.v1+json"), "layers": layers})
    files = {"index.json": index((manifest, name))}
    files |= {path_of(data): data for data in (manifest, config, layer)}
    done = crictl.run("load", "--unpack", stdin=tar(files))
    assert done.status == 0, done.stderr
    wait_until(lambda: loaded(lab, name))
    start(lab, name)
    crictl.run("save", name, "-o", folder / "zstd.tar")
    with tarfile.open(folder / "zstd.tar") as archive:
        file = archive.extractfile(path_of(layer))
        assert file is not None
        assert file.read() == layer
    lab.clean()


def test_an_image_of_100_layers(lab: Lab, crictl: Program, folder: Path) -> None:
    layers = [lab.base, *lab.layout.random_layers([1000] * 99, seed=7)]
    image = lab.layout.image("deep:1", layers)
    reference = lab.push(image)
    lab.node.kubelet.pull(reference)
    for form in ("oci", "docker"):
        crictl.run("save", reference, "--format", form, "-o", folder / "deep.tar")
        forget_images(lab)
        done = crictl.run("load", "-i", folder / "deep.tar")
        assert (done.status, done.stdout.decode()) == (0, f"{reference}\n"), done.stderr
        wait_until(lambda: loaded(lab, reference))
    start(lab, reference)
    lab.clean()


def test_watchers_see_a_load(lab: Lab, crictl: Program, command: list[str], web: Image) -> None:
    data = crictl.run("save", lab.reference(web)).stdout
    forget_images(lab)
    watch = subprocess.Popen(
        [*command, "image-pull-progress", "--follow", "--progress", "json", "--interval", "0.2"],
        stdout=subprocess.PIPE,
        text=True,
    )
    process = subprocess.Popen([*command, "load", "--progress", "none"], stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert watch.stdout is not None
    process.stdin.write(data[:-10_000_000])
    process.stdin.flush()
    seen = json.loads(watch.stdout.readline())
    while seen.get("image") != lab.reference(web) or seen.get("phase") != "downloading":
        seen = json.loads(watch.stdout.readline())
    process.stdin.write(data[-10_000_000:])
    process.stdin.close()
    assert process.wait() == 0
    ended = seen
    while ended.get("phase") != "done" or ended.get("layer") != web.layers[-1].digest:
        ended = json.loads(watch.stdout.readline())
    watch.send_signal(signal.SIGINT)
    watch.communicate()
    assert ended["image"] == lab.reference(web)


def test_a_layer_that_containerd_has_discarded(lab: Lab, crictl: Program, web: Image) -> None:
    subprocess.run(
        ["ctr", "-a", lab.node.socket_path, "-n", "k8s.io", "content", "rm", web.layers[-1].digest],
        check=True,
        capture_output=True,
    )
    done = crictl.run("save", lab.reference(web))
    assert done.stdout == b""
    assert "1 of 3 layers of" in done.stderr


def test_a_full_disk_leaves_no_file(lab: Lab, crictl: Program, web: Image, folder: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "small", folder], check=True)
    try:
        done = crictl.run("save", lab.reference(web), "-o", folder / "web.tar")
        assert done.status == 1
        assert "cannot write" in done.stderr
        assert "no space left" in done.stderr
        assert list(folder.iterdir()) == []
    finally:
        subprocess.run(["umount", folder], check=True)
