"""What a pull took that has just ended, as containerd's stores show it."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from pycrictl._proto.containerd import content_pb2, snapshots_pb2
from pycrictl.containerd.grpc_client import ContainerdClient, Documents
from pycrictl.containerd.store import ImageConfig, Index, Manifest, chain_ids
from pycrictl.errors import Invalid


class PullBytes(NamedTuple):
    """What became of an image's layers: got during the pull, reused, unpacked (on disk).

    ``digest`` is that of what the image's name stands for, a manifest or an index.
    """

    digest: str
    got_bytes: int
    reused_bytes: int
    extracted_bytes: int


def weigh(
    client: ContainerdClient, documents: Documents, *, snapshotter: str, name: str, since_s: float
) -> PullBytes | None:
    """Return what a pull took that began then; None if its image is not there any more.

    A layer came during the pull if its blob did. A containerd that discards blobs after they are
    unpacked leaves only the snapshot to judge by. ``name`` is the image's canonical spelling.
    """
    images = client.images(f"name=={name}")
    digest = images[0].target.digest if images else ""
    manifest = _manifest(client, documents, digest)
    if manifest is None:
        return None
    sizes = {layer.digest: layer.size_bytes for layer in manifest.layers}
    names = _snapshot_names(documents, manifest)
    blobs = client.infos(sizes)
    snapshots: dict[str, snapshots_pb2.Info] = {}
    with suppress(Invalid):  # a snapshotter that is not loaded
        snapshots = client.snapshots(snapshotter, names.values())
    got_bytes = extracted_bytes = 0
    for layer, size_bytes in sizes.items():
        blob, snapshot = blobs.get(layer), snapshots.get(names.get(layer, ""))
        is_unpacked = snapshot is not None and _is_new(snapshot, since_s)
        if is_unpacked if blob is None else _is_new(blob, since_s):
            got_bytes += size_bytes
        if is_unpacked:
            extracted_bytes += client.usage(snapshotter, names[layer]) or 0
    return PullBytes(digest, got_bytes, sum(sizes.values()) - got_bytes, extracted_bytes)


def _manifest(client: ContainerdClient, documents: Documents, digest: str) -> Manifest | None:
    document = documents.get(digest) if digest else None
    if isinstance(document, Index):
        fetched = client.infos(document.manifests)
        for one in document.manifests:
            if one in fetched and isinstance(found := documents.get(one), Manifest):
                return found
    return document if isinstance(document, Manifest) else None


def _snapshot_names(documents: Documents, manifest: Manifest) -> dict[str, str]:
    config = documents.get(manifest.config_digest)
    if not isinstance(config, ImageConfig) or len(config.diff_ids) != len(manifest.layers):
        return {}
    digests = [layer.digest for layer in manifest.layers]
    return dict(zip(digests, chain_ids(config.diff_ids), strict=True))


def _is_new(info: content_pb2.Info | snapshots_pb2.Info, since_s: float) -> bool:
    return info.created_at.ToNanoseconds() / 1e9 >= since_s
