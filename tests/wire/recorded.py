"""What a real containerd said and was told; ``tests.node.record_streams`` made the file."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from hypothesis import strategies as st

_FILE = Path(__file__).parent / "data" / "spdy-containerd.json"

RECORDED: dict[str, list[tuple[str, bytes]]] = {
    name: [(side, base64.b64decode(data)) for side, data in exchange["pieces"]]
    for name, exchange in json.loads(_FILE.read_text())["exchanges"].items()
}
"""The pieces of each exchange after its upgrade, from the client (c) or from the server (s)."""


def replies(exchange: str) -> bytes:
    """All that the server sent."""
    return b"".join(data for side, data in RECORDED[exchange] if side == "s")


def damaged(exchange: str) -> st.SearchStrategy[bytes]:
    """The same with at most four bytes changed."""
    whole = replies(exchange)

    def change(changes: list[tuple[int, int]]) -> bytes:
        data = bytearray(whole)
        for position, mask in changes:
            data[position] ^= mask
        return bytes(data)

    where = st.integers(0, len(whole) - 1)
    return st.lists(st.tuples(where, st.integers(1, 255)), max_size=4).map(change)
