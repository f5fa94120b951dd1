from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
import tarfile
from pathlib import Path

from .images import (
    ARCHITECTURE,
    Image,
    Layout,
    busybox_files,
    hex_file,
    random_file,
    small_files,
    text_file,
    zero_file,
)


def read_blob(layout: Layout, digest: str) -> bytes:
    return (layout.folder / "blobs/sha256" / digest.removeprefix("sha256:")).read_bytes()


def build(layout: Layout) -> Image:
    layers = [
        layout.layer(busybox_files()),
        layout.layer([hex_file("hex", 100_001, seed=3), text_file("etc/motd", "hello\n")]),
        *layout.random_layers([70_000, 5], seed=4),
    ]
    return layout.image("app:1", layers, config={"User": "nobody", "Cmd": ["true"]})


def test_same_seed_same_digests(tmp_path: Path) -> None:
    assert build(Layout(tmp_path / "a")) == build(Layout(tmp_path / "b"))


def test_sizes_and_digests_are_those_of_the_blobs(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "layout")
    image = build(layout)
    for layer in image.layers:
        packed = read_blob(layout, layer.digest)
        assert layer.digest == f"sha256:{hashlib.sha256(packed).hexdigest()}"
        assert layer.size_bytes == len(packed)
        unpacked = gzip.decompress(packed)
        assert layer.diff_id == f"sha256:{hashlib.sha256(unpacked).hexdigest()}"
        # One gzip member: its trailer alone has the unpacked size.
        assert layer.unpacked_bytes == len(unpacked) == struct.unpack("<I", packed[-4:])[0]
    assert image.layers_bytes == sum(layer.size_bytes for layer in image.layers)


def test_manifest_and_config(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "layout")
    image = build(layout)
    manifest_bytes = read_blob(layout, image.manifest_digest)
    manifest = json.loads(manifest_bytes)
    assert len(manifest_bytes) == image.manifest_size_bytes
    assert [(layer["digest"], layer["size"]) for layer in manifest["layers"]] == [
        (layer.digest, layer.size_bytes) for layer in image.layers
    ]
    config = json.loads(read_blob(layout, manifest["config"]["digest"]))
    assert manifest["config"]["digest"] == image.config_digest
    assert manifest["config"]["size"] == image.config_size_bytes
    assert config["rootfs"]["diff_ids"] == [layer.diff_id for layer in image.layers]
    assert config["config"] == {"Env": ["PATH=/bin"], "User": "nobody", "Cmd": ["true"]}
    named = json.loads((layout.folder / "index.json").read_text())["manifests"]
    assert [entry["digest"] for entry in named] == [image.digest]


def test_chain_ids(tmp_path: Path) -> None:
    image = build(Layout(tmp_path / "layout"))
    first, second = image.layers[:2]
    chained = hashlib.sha256(f"{first.diff_id} {second.diff_id}".encode()).hexdigest()
    assert image.chain_ids[:2] == (first.diff_id, f"sha256:{chained}")
    assert len(set(image.chain_ids)) == len(image.layers)


def test_content_of_layers(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "layout")
    layer = layout.layer([*busybox_files(), random_file("data", 1000, seed=5)])
    with tarfile.open(fileobj=io.BytesIO(read_blob(layout, layer.digest))) as tar:
        assert tar.getmember("bin/sh").linkname == "busybox"
        assert tar.getmember("bin/busybox").mode == 0o755
        assert tar.getmember("tmp").isdir()
        assert tar.getmember("data").size == 1000


def test_zeros_are_small_to_download_and_huge_to_unpack(tmp_path: Path) -> None:
    layer = Layout(tmp_path / "layout").layer([zero_file("zeros", 30_000_000)])
    assert layer.size_bytes < 300_000
    assert layer.unpacked_bytes > 30_000_000


def test_small_files(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "layout")
    layer = layout.layer(small_files("many", 500))
    with tarfile.open(fileobj=io.BytesIO(read_blob(layout, layer.digest))) as tar:
        assert len(tar.getnames()) == 500


def test_multi_platform_image(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "layout")
    image = layout.multi_platform_image("app:1", layout.random_layers([100], seed=6))
    index = json.loads(read_blob(layout, image.digest))
    architectures = {
        entry["platform"]["architecture"]: entry["digest"] for entry in index["manifests"]
    }
    assert architectures[ARCHITECTURE] == image.manifest_digest != image.digest
    assert len(architectures) == 2
