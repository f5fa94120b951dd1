"""The client of ``runtime.v1``: its calls, deadlines, errors and connection.

This room knows nothing of commands, tables or progress. Calls go by path; the messages come from
the generated code in ``_proto``.
"""

from __future__ import annotations

import os

# gRPC's core writes its own log lines to stderr unless it is told not to. It reads this when the
# first channel is opened, which no other package does.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
