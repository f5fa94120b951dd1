"""Container logs as files of this node: choosing lines, reading, following."""

from __future__ import annotations
