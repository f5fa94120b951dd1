"""A runtime for tests: a real gRPC server on a temporary unix socket, and hostile sockets.

::

    with serve() as server:
        server.prepare("ListImages", cri_pb2.ListImagesResponse())
        ...                       # talk to server.endpoint
        assert server.calls[0].method == "ListImages"
"""

from __future__ import annotations

from tests.fakecri.server import Call, FakeServer, Maker, Status, hang, serve

__all__ = ["Call", "FakeServer", "Maker", "Status", "hang", "serve"]
