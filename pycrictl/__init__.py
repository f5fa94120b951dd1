"""pycrictl: a command line for the nodes of Kubernetes that speaks CRI."""

from __future__ import annotations

import os

__version__ = "0.1.0"

# Before anybody imports grpc: its core writes to standard error whatever a peer sends, control
# sequences included.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
