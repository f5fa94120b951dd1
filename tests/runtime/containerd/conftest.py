from __future__ import annotations

from tests.runtime.containerd.fixtures import client, fake

__all__ = ["client", "fake"]
