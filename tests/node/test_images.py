from __future__ import annotations

import gzip
import hashlib
import struct
from pathlib import Path

from .images import (
    Image,
    Layout,
    busybox_files,
    hex_file,
    text_file,
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


def test_chain_ids(tmp_path: Path) -> None:
    image = build(Layout(tmp_path / "layout"))
    first, second = image.layers[:2]
    chained = hashlib.sha256(f"{first.diff_id} {second.diff_id}".encode()).hexdigest()
    assert image.chain_ids[:2] == (first.diff_id, f"sha256:{chained}")
    assert len(set(image.chain_ids)) == len(image.layers)
