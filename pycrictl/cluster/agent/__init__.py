"""The node agent: serves image pulls, and copies, as an API of the cluster."""

from __future__ import annotations
