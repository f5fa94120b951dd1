"""Manifests, indexes and configs of a containerd's content store, each read once."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from pycrictl.containerd.client import ContainerdClient
from pycrictl.containerd.store import (
    DOCUMENT_LIMIT_BYTES,
    Document,
    parse_document,
    unpacked_estimate,
)
from pycrictl.errors import Invalid

_KEPT: Final = 256
_HEAD_BYTES: Final = 16
_TRAILER_BYTES: Final = 4


class Documents:
    """Reads and remembers documents by digest: what a digest names never changes."""

    def __init__(self, client: ContainerdClient) -> None:
        self._client = client
        self._read: OrderedDict[str, Document] = OrderedDict()

    def get(self, digest: str, *, is_likely: bool = True) -> Document | None:
        """Return the document; None if the blob is not there yet, or is something else.

        If it is not ``is_likely`` a document, only one that begins like JSON is read to its end.
        """
        document = self._read.get(digest)
        if document is None:
            if not is_likely and not self._begins_like_json(digest):
                return None
            # One byte more than a document may have shows that the blob is not one.
            data = self._client.read(digest, size_bytes=DOCUMENT_LIMIT_BYTES + 1)
            document = parse_document(data) if data is not None else None
            if document is None:
                return None
            self._read[digest] = document
            if len(self._read) > _KEPT:
                self._read.popitem(last=False)
        self._read.move_to_end(digest)
        return document

    def unpacked_bytes(self, digest: str, compressed_bytes: int) -> int:
        """Estimate the unpacked size of a gzip layer from its last bytes; 0 if they do not say."""
        offset = max(0, compressed_bytes - _TRAILER_BYTES)
        try:
            trailer = self._client.read(digest, offset=offset, size_bytes=_TRAILER_BYTES)
        except Invalid:  # out of range: shorter than its manifest says
            return 0
        return unpacked_estimate(trailer or b"", compressed_bytes) or 0

    def _begins_like_json(self, digest: str) -> bool:
        head = self._client.read(digest, size_bytes=_HEAD_BYTES)
        return head is not None and head.lstrip().startswith(b"{")
