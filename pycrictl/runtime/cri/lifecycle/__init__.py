"""Creating, starting, stopping and removing containers, pods and images."""

from __future__ import annotations
