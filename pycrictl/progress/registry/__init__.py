"""What registries say of images: manifests, digests of tags."""

from __future__ import annotations
