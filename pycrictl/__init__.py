"""pycrictl: a command line for the nodes of Kubernetes that speaks CRI."""

from __future__ import annotations

__version__ = "0.1.0"
