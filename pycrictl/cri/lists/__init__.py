"""Lists of containers, pods and images, and finding one in them."""

from __future__ import annotations
