"""The node agent: serves image pulls as an API of the cluster, and the kubelet's routes."""

from __future__ import annotations
