"""pycrictl: a CRI command line for Kubernetes nodes."""

from __future__ import annotations

__version__ = "0.1.0"
