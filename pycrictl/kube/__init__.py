"""The API server as the node's own kubelet may ask it: its credential, a client, the pods."""

from __future__ import annotations
