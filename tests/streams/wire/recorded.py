"""Both directions of SPDY sessions recorded with a real containerd 1.6.20."""

from __future__ import annotations

import base64
import json
from pathlib import Path

_FILE = Path(__file__).parent / "data" / "spdy-containerd.json"

RECORDED: dict[str, list[tuple[str, bytes]]] = {
    name: [(side, base64.b64decode(data)) for side, data in exchange["pieces"]]
    for name, exchange in json.loads(_FILE.read_text())["exchanges"].items()
}
"""The pieces of each exchange after its upgrade, from the client (c) or from the server (s)."""
