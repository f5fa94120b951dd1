"""The API server: credentials, a client, and what its objects and Events say of pods."""

from __future__ import annotations
