from __future__ import annotations

from tests.containerd.fixtures import client, fake

__all__ = ["client", "fake"]
