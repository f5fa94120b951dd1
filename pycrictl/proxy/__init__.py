"""The node side: a CRI proxy that adds pull progress, a pull limit and copies to any runtime."""

from __future__ import annotations

import os

# gRPC's core would write lines of its own into the log.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
