"""Lists of containers, pods and images, and lookup in them."""

from __future__ import annotations
