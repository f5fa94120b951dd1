"""Access to the API server with the kubelet's rights: its credential, a client, the pods."""

from __future__ import annotations
