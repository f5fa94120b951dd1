"""Documents, references and estimates: bytes and texts in, values out."""

from __future__ import annotations

import gzip
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.runtime.containerd.store import (
    DOCUMENT_LIMIT_BYTES,
    Descriptor,
    Index,
    ingest_digest,
    parse_document,
    repositories,
    runs_on,
    unpacked_estimate,
)

A, B, C = ("sha256:" + letter * 64 for letter in "abc")


def dump(document: object) -> bytes:
    return json.dumps(document).encode()


GOOD: dict[str, Any] = {"config": {"digest": A, "size": 7}, "layers": [{"digest": B, "size": 1}]}


BAD_CONFIGS: list[Any] = [None, {"digest": "nonsense"}, {"digest": 5}]
BAD_LAYERS: list[Any] = [
    {}, [B], [{"digest": B}], GOOD["layers"] * 10_001,
    *([{"digest": B, "size": size}] for size in ("1", True, 1.0, -1, 2**63)),
    *([{"digest": digest, "size": 1}] for digest in (f"{B}\n", "../../etc")),
]  # fmt: skip


@pytest.mark.parametrize(
    "document",
    [
        *({}, [], None, "layers", {"layers": []}, {"manifests": 3}, {"manifests": ["x"]}),
        *({**GOOD, "config": config} for config in BAD_CONFIGS),
        *({**GOOD, "layers": layers} for layers in BAD_LAYERS),
        *({"manifests": [{"digest": None}]}, {"rootfs": []}, {"rootfs": {"diff_ids": "abc"}}),
        {"rootfs": {"diff_ids": [A, None]}},
    ],
)
def test_other_json_is_no_document(document: object) -> None:
    assert parse_document(dump(document)) is None


@pytest.mark.parametrize(
    ("its", "wanted", "runs"),
    [
        ("linux/amd64", "linux/amd64", True),
        ("linux/arm64/v8", "linux/arm64", True),
        ("linux/arm/v7", "linux/arm/v6", False),
        ("linux/arm64", "linux/arm", False),
        ("", "linux/arm", True),
    ],
)
def test_platforms(its: str, wanted: str, runs: bool) -> None:
    keys = ("os", "architecture", "variant")
    platform = dict(zip(keys, its.split("/"), strict=False)) if its else {}
    document = parse_document(dump({"manifests": [{"digest": A, "size": 1, "platform": platform}]}))
    assert document == Index((Descriptor(A, 1, "", its),))
    assert runs_on(its, wanted) is runs
    assert document.manifest_for(wanted) == (document.manifests[0] if runs else None)


def test_a_document_is_never_larger_than_the_limit() -> None:
    padding = b" " * (DOCUMENT_LIMIT_BYTES - len(dump(GOOD)))
    assert parse_document(dump(GOOD) + padding) is not None
    assert parse_document(dump(GOOD) + padding + b" ") is None


@given(st.binary(max_size=200))
def test_no_bytes_break_it(data: bytes) -> None:
    assert parse_document(data) is None
    assert parse_document(b'{"layers":' + data) is None


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        (f"layer-{A}", A),
        (f"manifest-docker.io/library/a-b:1@{B}", B),
        (f"config-me@home@{B}", B),
        (f"-{A}", ""),
        ("tar-import", ""),
        ("layer-sha256:short", ""),
    ],
)
def test_refs_of_ingests(ref: str, expected: str) -> None:
    assert ingest_digest(ref) == expected


def test_the_repository_that_all_documents_name_is_best() -> None:
    key = "containerd.io/distribution.source."
    manifest = {f"{key}127.0.0.1": "aaa/old,demo", "containerd.io/uncompressed": A}
    index = {f"{key}127.0.0.1": "demo", f"{key}docker.io": "library/demo"}
    assert repositories([manifest, index]) == (
        "127.0.0.1/demo",
        "127.0.0.1/aaa/old",
        "docker.io/library/demo",
    )
    assert repositories([{}, {key: "nohost"}, {f"{key}host": ",,"}]) == ()
    assert repositories([]) == ()


@pytest.mark.parametrize(
    "content", [b"", b"x", b"\0" * 1_000_000, random.Random(1).randbytes(300_000)]
)
@pytest.mark.parametrize("level", [0, 9])
def test_the_estimate_is_exact_for_one_member(content: bytes, level: int) -> None:
    packed = gzip.compress(content, level)
    assert unpacked_estimate(packed[-4:], len(packed)) == (len(content) or None)


def test_the_estimate_knows_what_it_cannot_tell() -> None:
    several = gzip.compress(b"a" * 100_000) * 2000
    assert unpacked_estimate(several[-4:], len(several)) is None
    assert unpacked_estimate(b"", 1000) is None
    assert unpacked_estimate(b"\0\0\0\0", 1000) is None


def test_the_estimate_of_a_huge_layer_wraps_around() -> None:
    size = 11 * 2**30
    trailer = (size % 2**32).to_bytes(4, "little")
    assert unpacked_estimate(trailer, 9 * 2**30) == size
    assert unpacked_estimate(trailer, 2**20) == size % 2**32
